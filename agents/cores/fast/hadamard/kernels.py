"""Matrix memories with a decay per element, step by step in compiled code, and their adjoint, for a CPU.

    P_t = b_t a_t^T (or `rates` * a_t^T),   M_t = f(P_t) * M_{t-1} + w_t u_t^T,   y_t = q_t^T M_t, in R blocks of rows

The memory of one environment and group stays in the CPU's cache. Only the memory before every `period`-th step is
stored; the adjoint recomputes those in between, one period at a time.

Shapes: T steps, B environments, G groups, J rows, I columns; a, u [T, B, G, I], w, q [T, B, G, J], y [T, B, G, R, I];
b [T, B, G, J], or `rates` [G, J, I] and b [T, B, G, 0], or both empty (b = 1); memories [B, G, J, I].
"""

from typing import TypeAlias

from .....base.compiled import compiled
from ..elementwise import Array, add_scaled, copy, dot, gradient_ends, part, tanh

EXP, TANH, COMPLEMENT = 0, 1, 2  # f(P): exp(-P), 1 + tanh(P), 1 - P

Arrays: TypeAlias = tuple[Array, ...]

_loops = compiled("reassoc", "nsz", allocates=False)


@part
def decay_row(form: int, a: Array, b: Array, rates: Array, j: int, out: Array) -> None:
    """Write row j of f(P) to `out` [I]; exp(-P) = (1 - t) / (1 + t) with t = tanh(P / 2)."""
    one = a.dtype.type(1)
    half = a.dtype.type(0.5) if form == EXP else one
    if len(b):
        scale = half * b[j]
        for i in range(len(out)):
            out[i] = scale * a[i]
    elif len(rates):
        for i in range(len(out)):
            out[i] = half * rates[j, i] * a[i]
    else:
        for i in range(len(out)):
            out[i] = half * a[i]
    if form == COMPLEMENT:
        for i in range(len(out)):
            out[i] = one - out[i]
        return
    tanh(out, out)
    if form == TANH:
        for i in range(len(out)):
            out[i] = one + out[i]
    else:
        for i in range(len(out)):
            out[i] = (one - out[i]) / (one + out[i])


@part
def through_decay(form: int, grad: Array, before: Array, decay: Array, out: Array) -> None:
    """Compute the gradient of a row of P from the gradient of M [I], the previous M, and f(P)."""
    two = grad.dtype.type(2)
    if form == EXP:
        for i in range(len(out)):
            out[i] = -grad[i] * before[i] * decay[i]
    elif form == TANH:
        for i in range(len(out)):
            out[i] = grad[i] * before[i] * decay[i] * (two - decay[i])
    else:
        for i in range(len(out)):
            out[i] = -grad[i] * before[i]


@part
def multiply(x: Array, factor: Array) -> None:
    """x [F] *= factor."""
    for i in range(len(x)):
        x[i] *= factor[i]


@part
def step_row(fresh: bool, decay: Array, before: Array, w: float, u: Array, out: Array) -> None:
    """Compute a row of M_t [I]; with `fresh`, the previous memory is empty. `before` and `out` may be one array."""
    if fresh:
        for i in range(len(out)):
            out[i] = w * u[i]
    else:
        for i in range(len(out)):
            out[i] = decay[i] * before[i] + w * u[i]


@part
def to_factors(
    grad: Array, a: Array, b: Array, rates: Array, j: int, on_a: Array, on_b: Array, on_rates: Array
) -> None:
    """Add the gradients of the factors of P's row j, from the gradient of the row [I]."""
    if len(b):
        add_scaled(on_a, b[j], grad)
        on_b[j] = dot(grad, a)
    elif len(rates):
        for i in range(len(grad)):
            on_a[i] += grad[i] * rates[j, i]
            on_rates[j, i] += grad[i] * a[i]
    else:
        for i in range(len(grad)):
            on_a[i] += grad[i]


@_loops
def recur(
    form: int, rows: Array, period: int, buffer: Array, inputs: Arrays, out: Array, saved: Array, memory: Array
) -> None:
    """Write y to `out` (initially zero), M before every `period`-th step to `saved` [.., B, G, J, I]; `memory`, the
    first M, becomes the last. `inputs`: a, b, rates, u, w, q, reset. Environments rows[0] to rows[1] - 1; buffer [I]"""
    a, b, rates, u, w, q, reset = inputs
    groups, height = a.shape[2], w.shape[3]
    block = height // out.shape[3]
    for e in range(rows[0], rows[1]):
        for g in range(groups):
            for t in range(len(a)):
                fresh = reset[t, e]
                for j in range(height):
                    row = memory[e, g, j]
                    if t % period == 0:
                        copy(row, saved[t // period, e, g, j])
                    if not fresh:
                        decay_row(form, a[t, e, g], b[t, e, g], rates[g], j, buffer)
                    step_row(fresh, buffer, row, w[t, e, g, j], u[t, e, g], row)
                    add_scaled(out[t, e, g, j // block], q[t, e, g, j], row)


@_loops
def recur_backward(
    form: int, rows: Array, period: int, cut: int, buffers: Arrays, inputs: Arrays, saved: Array, gradients: Arrays
) -> None:
    """The adjoint of `recur`. `gradients` are those of y, of the last memory, which becomes that of the first memory,
    and of a, b, rates (on_rates [B, G, J, I]), u, w, q, initially zero. Buffers: memories [period + 1, J, I], decays
    [period, J, I], a row [I]."""
    a, b, rates, u, w, q, reset = inputs
    grad, carried, on_a, on_b, on_rates, on_u, on_w, on_q = gradients
    memories, decays, buffer = buffers
    groups, height = a.shape[2], w.shape[3]
    block = height // grad.shape[3]
    for e in range(rows[0], rows[1]):
        for g in range(groups):
            for index in range(len(saved) - 1, -1, -1):
                first, last = index * period, min((index + 1) * period, len(a))
                for j in range(height):
                    copy(saved[index, e, g, j], memories[0, j])
                for t in range(first, last):  # recompute the period
                    s = t - first
                    for j in range(height):
                        if not reset[t, e]:
                            decay_row(form, a[t, e, g], b[t, e, g], rates[g], j, decays[s, j])
                        step_row(
                            reset[t, e], decays[s, j], memories[s, j], w[t, e, g, j], u[t, e, g], memories[s + 1, j]
                        )
                for t in range(last - 1, first - 1, -1):
                    s = t - first
                    ends = gradient_ends(reset, cut, t, e)
                    for j in range(height):
                        dm, dy = carried[e, g, j], grad[t, e, g, j // block]
                        add_scaled(dm, q[t, e, g, j], dy)
                        on_q[t, e, g, j] = dot(dy, memories[s + 1, j])
                        on_w[t, e, g, j] = dot(dm, u[t, e, g])
                        add_scaled(on_u[t, e, g], w[t, e, g, j], dm)
                        if not reset[t, e]:
                            through_decay(form, dm, memories[s, j], decays[s, j], buffer)
                            to_factors(
                                buffer,
                                a[t, e, g],
                                b[t, e, g],
                                rates[g],
                                j,
                                on_a[t, e, g],
                                on_b[t, e, g],
                                on_rates[e, g],
                            )
                        if ends:
                            dm[:] = 0
                        else:
                            multiply(dm, decays[s, j])
