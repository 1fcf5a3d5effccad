"""Attention and gates of the RMC between its matrix multiplications, and their gradients, for a CPU.

Parts of the compiled loop in `kernels.py`, each for one environment or one row.

Shapes: N + 1 rows of F values (the last row, the input, has no query); H heads of width V = F / H; keys of size K;
D = H (2 K + V), per head query, key and value.
"""

import numpy as np

from ..elementwise import Array, add_scaled, copy, dot, part


@part
def attend(qkv: Array, rows: Array, weights: Array, out: Array) -> None:
    """out [N, F] = the first N rows + weights v, with weights [H, N, N + 1] = softmax(q k^T / sqrt(K))."""
    heads, queries, every = weights.shape
    width, size = out.shape[1] // heads, qkv.shape[1] // heads
    keys = (size - width) // 2
    one = qkv.dtype.type(1)  # a Python float would convert everything to float64
    factor = one / np.sqrt(qkv.dtype.type(keys))
    for h in range(heads):
        q, k, v, end = h * size, h * size + keys, h * size + 2 * keys, (h + 1) * size
        for i in range(queries):
            weight, y = weights[h, i], out[i, h * width : (h + 1) * width]
            for j in range(every):
                weight[j] = factor * dot(qkv[i, q:k], qkv[j, k:v])
            _softmax(weight)
            copy(rows[i, h * width : (h + 1) * width], y)
            for j in range(every):
                add_scaled(y, weight[j], qkv[j, v:end])


@part
def attend_backward(grad: Array, qkv: Array, weights: Array, grad_qkv: Array) -> None:
    """The adjoint of `attend`: gradient of the result [N, F] -> of q, k, v [N + 1, D]."""
    heads, queries, every = weights.shape
    width, size = grad.shape[1] // heads, qkv.shape[1] // heads
    keys = (size - width) // 2
    one = qkv.dtype.type(1)
    factor = one / np.sqrt(qkv.dtype.type(keys))
    grad_weight = np.empty_like(weights[0, 0])
    grad_qkv[:] = 0
    for h in range(heads):
        q, k, v, end = h * size, h * size + keys, h * size + 2 * keys, (h + 1) * size
        for i in range(queries):
            weight, above = weights[h, i], grad[i, h * width : (h + 1) * width]
            mean = one - one
            for j in range(every):
                grad_weight[j] = dot(above, qkv[j, v:end])
                mean += weight[j] * grad_weight[j]
            for j in range(every):
                score = factor * weight[j] * (grad_weight[j] - mean)
                add_scaled(grad_qkv[i, q:k], score, qkv[j, k:v])
                add_scaled(grad_qkv[j, k:v], score, qkv[i, q:k])
                add_scaled(grad_qkv[j, v:end], weight[j], above)


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
