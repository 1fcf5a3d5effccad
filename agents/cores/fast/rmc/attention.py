"""Attention, norms and gates of the RMC between its products of matrices, and their gradients, for a CPU.

Parts of the compiled loop in `kernels.py`, each for one batch element or one row, so that its numbers stay in
the processor's cache from the first operation to the last and do not depend on which others are in the batch.

Shapes: N + 1 rows of F numbers, of the last of which only keys and values matter; H heads of width V = F / H; keys of
size K; D = H (2 K + V), per head query, key and value.
"""

import numpy as np

from ..elementwise import Array, add_scaled, dot, part, scale


@part
def attend(normal: Array, rows: Array, gain: Array, offset: Array, qkv: Array, weights: Array, out: Array) -> None:
    """out [N, F] = the first N rows + their attention over all N + 1.

    normal [N + 1, D] are the normal numbers of the rows' q, k, v; written are qkv [N + 1, D], and the attention's
    weights [H, N, N + 1].
    """
    heads = len(weights)
    width, size = out.shape[1] // heads, qkv.shape[1] // heads
    for n in range(len(qkv)):
        scale(normal[n], gain, offset, qkv[n])
    for h in range(heads):
        _attend_head(qkv, rows, h * size, h * width, width, weights[h], out)


@part
def attend_backward(grad: Array, qkv: Array, weights: Array, grad_qkv: Array) -> None:
    """The adjoint of `attend`: gradient of its result [N, F] -> of q, k and v [N + 1, D]."""
    heads = len(weights)
    width, size = grad.shape[1] // heads, qkv.shape[1] // heads
    grad_qkv[:] = 0
    for h in range(heads):
        _attend_head_backward(grad, qkv, h * size, h * width, width, weights[h], grad_qkv)


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
def _attend_head(qkv: Array, rows: Array, first: int, column: int, width: int, weights: Array, out: Array) -> None:
    """One head's columns of rows + A, with A = weights v and weights [Q, R + E] = softmax(q k^T / sqrt(K)).

    The head's q, k, v begin at column `first` of qkv, its share of a row at `column`.
    """
    queries, every = weights.shape
    keys = (qkv.shape[1] * width // out.shape[1] - width) // 2
    values, end = first + 2 * keys, first + 2 * keys + width
    one = qkv.dtype.type(1)  # a plain number would make all of it float64
    scale = one / np.sqrt(qkv.dtype.type(keys))
    for i in range(queries):
        weight, y = weights[i], out[i, column : column + width]
        for j in range(every):
            weight[j] = scale * dot(qkv[i, first : first + keys], qkv[j, first + keys : values])
        _softmax(weight)
        y[:] = rows[i, column : column + width]
        for j in range(every):
            add_scaled(y, weight[j], qkv[j, values:end])


@part
def _attend_head_backward(
    grad: Array, qkv: Array, first: int, column: int, width: int, weights: Array, grad_qkv: Array
) -> None:
    """The adjoint of `_attend_head`: adds to the gradient of q, k and v."""
    queries, every = weights.shape
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
        for j in range(every):
            score = scale * weight[j] * (grad_weight[j] - mean)
            add_scaled(grad_qkv[i, first : first + keys], score, qkv[j, first + keys : values])
            add_scaled(grad_qkv[j, first + keys : values], score, qkv[i, first : first + keys])
            add_scaled(grad_qkv[j, values:end], weight[j], above)


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
