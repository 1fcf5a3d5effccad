"""Compiled unroll of LSTM and ConvLSTM and its gradient, for some environments of a batch on a CPU.

The equations are in `lstm.LSTM` and `conv_lstm.ConvLSTM`; shapes are those of `arrays.py`. A convolution is one matrix
multiplication: every position's neighborhood is one contiguous row of `seen`. The LSTM has one position, which is its
own neighborhood.
"""

from .....base.compiled import compiled
from ..blas import multiply
from ..elementwise import Array, add, copy_rows, gradient_ends, part, sigmoid, tanh
from .arrays import Gradients, Inputs, Record, look, look_backward


@part
def cell(gates: Array, c: Array, squashed: Array, new_c: Array, new_h: Array) -> None:
    """c' = sigmoid(f) * c + sigmoid(i) * tanh(g),  h' = sigmoid(o) * tanh(c').

    gates [4 H] are i, f, g, o before their nonlinearities, which are applied in place; `squashed` [H] becomes tanh(c').
    """
    size = len(c)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    sigmoid(gates[: 2 * size])
    tanh(g, g)
    sigmoid(o)
    for k in range(size):
        new_c[k] = f[k] * c[k] + i[k] * g[k]
    tanh(new_c, squashed)
    for k in range(size):
        new_h[k] = o[k] * squashed[k]


@part
def cell_backward(gates: Array, c: Array, squashed: Array, to_h: Array, to_gates: Array, to_c: Array) -> None:
    """Gradients of h' and c' [H] -> those of i, f, g, o [4 H] before their nonlinearities, and of c in `to_c`."""
    size = len(c)
    one = to_h.dtype.type(1)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    to_i, to_f = to_gates[:size], to_gates[size : 2 * size]
    to_g, to_o = to_gates[2 * size : 3 * size], to_gates[3 * size :]
    for k in range(size):
        from_c = to_c[k] + to_h[k] * o[k] * (one - squashed[k] * squashed[k])
        to_i[k] = from_c * g[k] * i[k] * (one - i[k])
        to_f[k] = from_c * c[k] * f[k] * (one - f[k])
        to_g[k] = from_c * i[k] * (one - g[k] * g[k])
        to_o[k] = to_h[k] * squashed[k] * o[k] * (one - o[k])
        to_c[k] = from_c * f[k]


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
    """Compute all steps of environments `first` to `last` - 1; write h [T, B, P, C] to `out`, the last c to `cells`.

    The weight is [4 C, K C]; with `turned`, [K C, 4 C]. For acting, the record has one step and the environments of one
    group, and is reused.
    """
    size = len(inputs.places)
    start = first % (record.c.shape[1] // size)
    shift, end = first - start, start + last - first
    for b in range(first, last):
        copy_rows(inputs.c[b], cells[b])
    for t in range(len(out)):
        s = t % len(record.c)
        seen, c, gates, inner = record.seen[s], record.c[s], record.gates[s], record.inner[s]
        for b in range(start, end):
            rows = slice(b * size, (b + 1) * size)
            if inputs.reset[t, b + shift]:
                seen[rows] = 0
                c[rows] = 0
            else:
                look(out[t - 1, b + shift] if t > 0 else inputs.h[b + shift], inputs.places, seen[rows])
                copy_rows(cells[b + shift], c[rows])
        multiply(gemm, seen[start * size : end * size], weight, not turned, gates[start * size : end * size])
        for b in range(start, end):
            for p in range(size):
                row = b * size + p
                add(gates[row], inputs.gates[t, b + shift, p])
                cell(gates[row], c[row], inner[row], cells[b + shift, p], out[t, b + shift, p])


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
    """The adjoint of `forward` for gradients of h [T, B, P, C] and of the last h and c [B P, C].

    Gradients are truncated before every `cut`-th step; 0 truncates none. The weight is [4 C, K C].
    """
    size = len(inputs.places)
    rows = slice(first * size, last * size)
    for t in range(len(grad_out) - 1, -1, -1):
        gates, c, inner, to_gates = record.gates[t], record.c[t], record.inner[t], grads.gates[t]
        for b in range(first, last):
            for p in range(size):
                row = b * size + p
                add(grads.h[row], grad_out[t, b, p])
                cell_backward(gates[row], c[row], inner[row], grads.h[row], to_gates[row], grads.c[row])
        multiply(gemm, to_gates[rows], weight, False, grads.seen[rows])
        for b in range(first, last):
            span = slice(b * size, (b + 1) * size)
            if gradient_ends(inputs.reset, cut, t, b):
                grads.h[span] = 0
                grads.c[span] = 0
            else:
                look_backward(grads.seen[span], inputs.places, grads.h[span])
