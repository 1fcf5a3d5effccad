"""The LSTM's unroll and its gradient, compiled, for some columns of a batch on a CPU; the equations are in `lstm.LSTM`.

Shapes: T steps, B columns, H cells.
"""

from typing import NamedTuple

from ....base.compiled import compiled
from .arrays import Array
from .blas import multiply
from .elementwise import add, sigmoid, tanh


class Inputs(NamedTuple):
    """Inputs and weights of the loop."""

    gates: Array
    """[T, B, 4 H]: W_x x + b."""
    reset: Array
    """bool [T, B]."""
    h: Array
    c: Array
    """[B, H]."""


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass."""

    h: Array
    c: Array
    """[T, B, H], before each step, after resets."""
    gates: Array
    """[T, B, 4 H]: i, f, g, o."""
    squashed: Array
    """[T, B, H]: tanh of the cells after each step."""


@compiled("reassoc", "nsz")
def forward(
    gemm: int,
    first: int,
    last: int,
    given: Inputs,
    weight: Array,
    turned: bool,
    record: Record,
    out: Array,
    cells: Array,
) -> None:
    """All steps of columns `first` to `last`: their h [T, B, H] in `out`, their last c [B, H] in `cells`.

    The weight is [4 H, H], with `turned` [H, 4 H]. A record of one step and of a group's columns is written
    over and over: for acting.
    """
    start = first % record.h.shape[1]
    shift, end = first - start, start + last - first
    size = out.shape[2]
    cells[first:last] = given.c[first:last]
    for t in range(len(out)):
        s = t % len(record.h)
        h, c, gates, squashed = record.h[s], record.c[s], record.gates[s], record.squashed[s]
        for b in range(start, end):
            if given.reset[t, b + shift]:
                h[b, :] = 0
                c[b, :] = 0
            else:
                h[b, :] = out[t - 1, b + shift] if t > 0 else given.h[b + shift]
                c[b, :] = cells[b + shift]
        multiply(gemm, h[start:end], weight, not turned, gates[start:end])
        for b in range(start, end):
            row, new_c, new_h = gates[b], cells[b + shift], out[t, b + shift]
            add(row, given.gates[t, b + shift])
            sigmoid(row[: 2 * size])
            tanh(row[2 * size : 3 * size], row[2 * size : 3 * size])
            sigmoid(row[3 * size :])
            i, f, g, o = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
            old, flat = c[b], squashed[b]
            for k in range(size):
                new_c[k] = f[k] * old[k] + i[k] * g[k]
            tanh(new_c, flat)
            for k in range(size):
                new_h[k] = o[k] * flat[k]


@compiled("reassoc", "nsz")
def backward(
    gemm: int,
    first: int,
    last: int,
    cut: int,
    reset: Array,
    weight: Array,
    record: Record,
    grad_out: Array,
    grad_gates: Array,
    grad_h: Array,
    grad_c: Array,
) -> None:
    """The adjoint of `forward` for gradients of h [T, B, H] and of the last h and c [B, H].

    The last two are overwritten by those of the first h and c. Gradients are cut before every `cut`-th step; 0 cuts
    none. The weight is [4 H, H].
    """
    size = grad_out.shape[2]
    one = grad_out.dtype.type(1)
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            row, out, flat, old = record.gates[t, b], grad_gates[t, b], record.squashed[t, b], record.c[t, b]
            i, f, g, o = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size :]
            to_i, to_f, to_g, to_o = out[:size], out[size : 2 * size], out[2 * size : 3 * size], out[3 * size :]
            to_h, to_c, above = grad_h[b], grad_c[b], grad_out[t, b]
            for k in range(size):
                from_h = to_h[k] + above[k]
                from_c = to_c[k] + from_h * o[k] * (one - flat[k] * flat[k])
                to_i[k] = from_c * g[k] * i[k] * (one - i[k])
                to_f[k] = from_c * old[k] * f[k] * (one - f[k])
                to_g[k] = from_c * i[k] * (one - g[k] * g[k])
                to_o[k] = from_h * flat[k] * o[k] * (one - o[k])
                to_c[k] = from_c * f[k]
        multiply(gemm, grad_gates[t, first:last], weight, False, grad_h[first:last])
        for b in range(first, last):
            if reset[t, b] or (cut > 0 and t > 0 and t % cut == 0):
                grad_h[b, :] = 0
                grad_c[b, :] = 0
