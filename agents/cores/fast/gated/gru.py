"""Compiled unroll of the GRU and its gradient, for some environments of a batch on a CPU.

The equations are in `gru.GRU`; shapes are those of `arrays.py`, with one position.
"""

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, copy, gradient_ends, sigmoid, tanh
from .arrays import Gradients, Inputs, Record


@compiled("reassoc", "nsz")
def forward(
    gemm: int,
    first: int,
    last: int,
    inputs: Inputs,
    weight: Array,
    turned: bool,
    record: Record,
    out: Array,
    cells: Array,
) -> None:
    """Compute all steps of environments `first` to `last` - 1; write h [T, B, 1, C] to `out`. There are no cells.

    The weight is [3 C, C]; with `turned`, [C, 3 C]. For acting, the record has one step and the environments of
    one group, and is reused.
    """
    start = first % record.seen.shape[1]
    shift, end = first - start, start + last - first
    size = out.shape[3]
    one = out.dtype.type(1)
    for t in range(len(out)):
        s = t % len(record.seen)
        h, gates, inner = record.seen[s], record.gates[s], record.inner[s]
        for b in range(start, end):
            if inputs.reset[t, b + shift]:
                h[b, :] = 0
            else:
                copy(out[t - 1, b + shift, 0] if t > 0 else inputs.h[b + shift, 0], h[b])
        multiply(gemm, h[start:end], weight, not turned, gates[start:end])
        for b in range(start, end):
            both, from_input = gates[b, : 2 * size], inputs.gates[t, b + shift, 0]
            # r, z = sigmoid(x + h)
            add(both, from_input[: 2 * size])
            sigmoid(both)
            r, z, n = both[:size], both[size:], gates[b, 2 * size :]
            x_n, h_n, old, new = from_input[2 * size :], inner[b], h[b], out[t, b + shift, 0]
            # n = tanh(x_n + r * h_n)
            for k in range(size):
                h_n[k] = n[k] + inputs.bias[k]
                n[k] = x_n[k] + r[k] * h_n[k]
            tanh(n, n)
            # h' = (1 - z) * n + z * h
            for k in range(size):
                new[k] = (one - z[k]) * n[k] + z[k] * old[k]


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    first: int,
    last: int,
    cut: int,
    inputs: Inputs,
    weight: Array,
    record: Record,
    grad_out: Array,
    grads: Gradients,
) -> None:
    """The adjoint of `forward` for gradients of h [T, B, 1, C] and of the last h [B, C].

    Gradients are truncated before every `cut`-th step; 0 truncates none. The weight is [3 C, C].
    """
    size = grad_out.shape[3]
    one = grad_out.dtype.type(1)
    through = grads.seen  # [B, C]: the gradient that reaches the previous h directly, through z
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            gates, h_n, old = record.gates[t, b], record.inner[t, b], record.seen[t, b]
            r, z, n = gates[:size], gates[size : 2 * size], gates[2 * size :]
            to_gates, to_products = grads.gates[t, b], grads.products[t, b]
            to_h, past, above = grads.h[b], through[b], grad_out[t, b, 0]
            for k in range(size):
                from_h = to_h[k] + above[k]
                from_n = from_h * (one - z[k]) * (one - n[k] * n[k])
                from_r = from_n * h_n[k] * r[k] * (one - r[k])
                from_z = from_h * (old[k] - n[k]) * z[k] * (one - z[k])
                past[k] = from_h * z[k]
                to_gates[k] = from_r
                to_gates[size + k] = from_z
                to_gates[2 * size + k] = from_n
                to_products[k] = from_r
                to_products[size + k] = from_z
                to_products[2 * size + k] = from_n * r[k]
        multiply(gemm, grads.products[t, first:last], weight, False, grads.h[first:last])
        for b in range(first, last):
            if gradient_ends(inputs.reset, cut, t, b):
                grads.h[b, :] = 0
            else:
                add(grads.h[b], through[b])
