"""Attention, norms and gates of the RMC between its matrix multiplications, and their gradients, for a CPU.

Parts of the compiled loop in `kernels.py`, each for one environment or one row, so that values stay in the CPU's
cache from the first operation to the last and do not depend on the rest of the batch.

Shapes: N + 1 rows of F values (the last row, the input, has no query); H heads of width V = F / H; keys of size K;
D = H (2 K + V), per head query, key and value; P positions of an image, only with keys and values, E = H (K + V).
"""

import numpy as np

from ..elementwise import Array, add_scaled, copy, dot, part, scale


@part
def attend(
    normal: Array, rows: Array, gain: Array, offset: Array, places: Array, qkv: Array, weights: Array, out: Array
) -> None:
    """out [N, F] = the first N rows + their attention over all N + 1 rows and over places [P, E].

    normal [N + 1, D] are the normalized values of the rows' q, k, v; qkv [N + 1, D] and the attention weights
    [H, N, N + 1 + P] are written.
    """
    heads = len(weights)
    width, size, more = out.shape[1] // heads, qkv.shape[1] // heads, places.shape[1] // heads
    for n in range(len(qkv)):
        scale(normal[n], gain, offset, qkv[n])
    for h in range(heads):
        _attend_head(qkv, places, rows, h * size, h * more, h * width, width, weights[h], out)


@part
def attend_backward(
    grad: Array, qkv: Array, places: Array, weights: Array, grad_qkv: Array, grad_places: Array
) -> None:
    """The adjoint of `attend`: gradient of the result [N, F] -> of q, k and v [N + 1, D] and of the places [P, E]."""
    heads = len(weights)
    width, size, more = grad.shape[1] // heads, qkv.shape[1] // heads, places.shape[1] // heads
    grad_qkv[:] = 0
    grad_places[:] = 0
    for h in range(heads):
        _attend_head_backward(
            grad, qkv, places, h * size, h * more, h * width, width, weights[h], grad_qkv, grad_places
        )


@part
def mix(memory: Array, candidate: Array, gates: Array, out: Array) -> None:
    """out [F] = i candidate + f memory; the gates [2 G] are i and f, G = 1 or F."""
    half = len(gates) // 2
    if half == 1:
        i, f = gates[0], gates[1]
        for c in range(len(out)):
            out[c] = i * candidate[c] + f * memory[c]
    else:
        for c in range(len(out)):
            out[c] = gates[c] * candidate[c] + gates[half + c] * memory[c]


@part
def mix_backward(
    grad: Array, memory: Array, candidate: Array, gates: Array, grad_memory: Array, grad_candidate: Array, out: Array
) -> None:
    """The adjoint of `mix` with candidate = tanh(x) and gates = sigmoid(y): gradients of memory, x and, in `out`, y."""
    half = len(gates) // 2
    one = grad.dtype.type(1)
    if half == 1:
        i, f = gates[0], gates[1]
        for c in range(len(grad)):
            grad_memory[c] = f * grad[c]
            grad_candidate[c] = i * grad[c] * (one - candidate[c] * candidate[c])
        out[0] = dot(grad, candidate) * i * (one - i)
        out[1] = dot(grad, memory) * f * (one - f)
    else:
        to_i, to_f = out[:half], out[half:]
        for c in range(len(grad)):
            i, f = gates[c], gates[half + c]
            grad_memory[c] = f * grad[c]
            grad_candidate[c] = i * grad[c] * (one - candidate[c] * candidate[c])
            to_i[c] = grad[c] * candidate[c] * i * (one - i)
            to_f[c] = grad[c] * memory[c] * f * (one - f)


@part
def _attend_head(
    qkv: Array,
    places: Array,
    rows: Array,
    first: int,
    start: int,
    column: int,
    width: int,
    weights: Array,
    out: Array,
) -> None:
    """One head's columns of rows + A, with A = weights v and weights [N, N + 1 + P] = softmax(q k^T / sqrt(K)).

    The head's q, k, v begin at column `first` of qkv, its k, v at column `start` of places, its part of a row at
    `column`.
    """
    queries, every = len(weights), len(qkv)
    keys = (qkv.shape[1] * width // out.shape[1] - width) // 2
    values, end = first + 2 * keys, first + 2 * keys + width
    one = qkv.dtype.type(1)  # a Python float would convert everything to float64
    scale = one / np.sqrt(qkv.dtype.type(keys))
    for i in range(queries):
        weight, y = weights[i], out[i, column : column + width]
        for j in range(every):
            weight[j] = scale * dot(qkv[i, first : first + keys], qkv[j, first + keys : values])
        for p in range(len(places)):
            weight[every + p] = scale * dot(qkv[i, first : first + keys], places[p, start : start + keys])
        _softmax(weight)
        copy(rows[i, column : column + width], y)
        for j in range(every):
            add_scaled(y, weight[j], qkv[j, values:end])
        for p in range(len(places)):
            add_scaled(y, weight[every + p], places[p, start + keys : start + keys + width])


@part
def _attend_head_backward(
    grad: Array,
    qkv: Array,
    places: Array,
    first: int,
    start: int,
    column: int,
    width: int,
    weights: Array,
    grad_qkv: Array,
    grad_places: Array,
) -> None:
    """The adjoint of `_attend_head`: adds to the gradients of q, k and v and of the places."""
    queries, every = len(weights), len(qkv)
    keys = (qkv.shape[1] * width // grad.shape[1] - width) // 2
    values, end = first + 2 * keys, first + 2 * keys + width
    one = qkv.dtype.type(1)
    scale = one / np.sqrt(qkv.dtype.type(keys))
    grad_weight = np.empty_like(weights[0])
    for i in range(queries):
        weight, above = weights[i], grad[i, column : column + width]
        mean = one - one
        for j in range(every):
            grad_weight[j] = dot(above, qkv[j, values:end])
            mean += weight[j] * grad_weight[j]
        for p in range(len(places)):
            grad_weight[every + p] = dot(above, places[p, start + keys : start + keys + width])
            mean += weight[every + p] * grad_weight[every + p]
        for j in range(every):
            score = scale * weight[j] * (grad_weight[j] - mean)
            add_scaled(grad_qkv[i, first : first + keys], score, qkv[j, first + keys : values])
            add_scaled(grad_qkv[j, first + keys : values], score, qkv[i, first : first + keys])
            add_scaled(grad_qkv[j, values:end], weight[j], above)
        for p in range(len(places)):
            score = scale * weight[every + p] * (grad_weight[every + p] - mean)
            add_scaled(grad_qkv[i, first : first + keys], score, places[p, start : start + keys])
            add_scaled(grad_places[p, start : start + keys], score, qkv[i, first : first + keys])
            add_scaled(grad_places[p, start + keys : start + keys + width], weight[every + p], above)


@part
def _softmax(x: Array) -> None:
    largest = x[0]
    for j in range(1, len(x)):
        largest = max(largest, x[j])
    total = largest - largest
    for j in range(len(x)):
        x[j] = np.exp(x[j] - largest)
        total += x[j]
    for j in range(len(x)):
        x[j] /= total
