"""Matrix memories with a decay per element over all steps of an unroll, in compiled code for a CPU, exact at resets.

    P_t = b_t a_t^T (or `rates` * a_t^T),   M_t = f(P_t) * M_{t-1} + w_t u_t^T,   y_t = q_t^T M_t, in R blocks of rows

M_{t-1} = 0 where an episode begins. The memory of one environment and group stays in the CPU's cache. Only the memory
before every `period`-th step is stored; the adjoint recomputes those in between, one period at a time. The loops are
one node of the autograd graph, differentiable once.

Shapes: T steps, B environments, G groups (heads), J rows, I columns; a, u [T, B, G, I], w, q [T, B, G, J], y [T, B, G,
R, I]; b [T, B, G, J], or `rates` [G, J, I] and b [T, B, G, 0], or both empty (b = 1); memories [B, G, J, I].
"""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....base.compiled import compiled
from .elementwise import Array, add, add_scaled, copy, dot, gradient_ends, part, tanh
from .routes import arrays, by_groups, check

FORMS = {"exp": 0, "tanh": 1, "complement": 2}  # f(P): exp(-P), 1 + tanh(P), 1 - P
EXP, TANH, COMPLEMENT = FORMS.values()
ENVIRONMENTS = 8  # Per piece of work

Arrays: TypeAlias = tuple[Array, ...]

_loops = compiled("reassoc", "nsz", allocates=False)


def remember(
    form: str,
    decay: tuple[Tensor, Tensor | None],
    write: tuple[Tensor, Tensor],
    query: Tensor,
    reset: Tensor,
    start: Tensor,
    bptt_length: int | None = None,
    reads: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return y [T, B, G, R, I] of all steps and the last memory [B, G, J, I].

    Args:
        form: f(P), "exp": exp(-P), P >= 0; "tanh": 1 + tanh(P); "complement": 1 - P.
        decay: a, and b, or the rates; None: b = 1.
        write, query: u, w, and q.
        reset, start, bptt_length: as in `Core.unroll`; `start` is the memory before step 0.
        reads: R; result r is read from rows r J / R to (r + 1) J / R.
    """
    (a, b), (u, w) = decay, write
    (*before, columns), height = a.shape, w.shape[3]
    constant = b is not None and b.dim() == 3
    rates = b if constant else a.new_empty(before[2], 0, columns)
    b = a.new_empty(*before, 0) if b is None or constant else b
    check("matrix memory", a, reset=(reset, before[:2]), start=(start, (*before[1:], height, columns)))
    steps = (a, b, rates, u, w, query)
    return _Remember.apply(FORMS[form], reads, bptt_length or 0, reset, start, *steps)  # pyright: ignore


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: int, reads: int, cut: int, reset: Tensor, start: Tensor, *steps: Tensor
    ) -> tuple[Tensor, Tensor]:
        a = steps[0]  # The others are b, rates, u, w and q.
        length, batch, groups, columns = a.shape
        period = math.isqrt(length - 1) + 1
        out = a.new_zeros(length, batch, groups, reads, columns)
        saved = a.new_empty(-(-length // period), *start.shape)
        memory = start.clone(memory_format=torch.contiguous_format)
        inputs, outputs = tuple(arrays(*steps, reset)), tuple(arrays(out, saved, memory))

        def run(_: int, first: int, last: int) -> None:
            _recur(form, (first, last), period, np.empty(columns, inputs[0].dtype), inputs, outputs)

        by_groups(run, batch, ENVIRONMENTS)
        ctx.form, ctx.cut, ctx.period = form, cut, period
        ctx.save_for_backward(reset, saved, *steps)
        return out, memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_memory: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        reset, saved, *steps = ctx.saved_tensors
        a, (batch, _, height, columns) = steps[0], saved.shape[1:]
        carried = grad_memory.clone(memory_format=torch.contiguous_format)
        results = [x.new_zeros(x.shape) for x in steps]
        results[2] = a.new_zeros(batch, *steps[2].shape)
        inputs, gradients = tuple(arrays(*steps, reset)), tuple(arrays(grad, carried, *results))

        def run(_: int, first: int, last: int) -> None:
            shapes = (ctx.period + 1, height, columns), (ctx.period, height, columns), (columns,)
            buffers = saved.numpy(), *(np.empty(shape, inputs[0].dtype) for shape in shapes)
            _recur_backward(ctx.form, (first, last), ctx.period, ctx.cut, buffers, inputs, gradients)

        by_groups(run, batch, ENVIRONMENTS)
        results[2] = results[2].sum(0)
        return None, None, None, None, carried, *results


@part
def _decay_row(form: int, a: Array, b: Array, rates: Array, j: int, out: Array) -> None:
    """Write row j of f(P) to `out` [I]; exp(-P) = (1 - t) / (1 + t) with t = tanh(P / 2)."""
    one = a.dtype.type(1)
    half = a.dtype.type(0.5) if form == EXP else one
    if len(rates):
        for i in range(len(out)):
            out[i] = half * rates[j, i] * a[i]
    else:
        scale = half * b[j] if len(b) else half
        for i in range(len(out)):
            out[i] = scale * a[i]
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
def _through_decay(form: int, grad: Array, before: Array, decay: Array, out: Array) -> None:
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
def _step_row(fresh: bool, decay: Array, before: Array, w: float, u: Array, out: Array) -> None:
    """Compute a row of M_t [I]; with `fresh`, the previous memory is empty. `before` and `out` may be one array."""
    if fresh:
        for i in range(len(out)):
            out[i] = w * u[i]
    else:
        for i in range(len(out)):
            out[i] = decay[i] * before[i] + w * u[i]


@part
def _to_factors(grad: Array, factors: Arrays, j: int, on_a: Array, on_b: Array, on_rates: Array) -> None:
    """Add the gradients of the factors of P's row j, from the gradient of the row [I]."""
    a, b, rates = factors
    if len(b):
        add_scaled(on_a, b[j], grad)
        on_b[j] = dot(grad, a)
    elif len(rates):
        for i in range(len(grad)):
            on_a[i] += grad[i] * rates[j, i]
            on_rates[j, i] += grad[i] * a[i]
    else:
        add(on_a, grad)


@_loops
def _recur(form: int, rows: tuple[int, int], period: int, buffer: Array, inputs: Arrays, outputs: Arrays) -> None:
    """Compute all steps of environments rows[0] to rows[1] - 1 from a, b, rates, u, w, q, reset. Outputs: y, initially
    zero; M before every `period`-th step [.., B, G, J, I]; the first M, which becomes the last. Buffer [I]."""
    out, saved, memory = outputs
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
                        _decay_row(form, a[t, e, g], b[t, e, g], rates[g], j, buffer)
                    _step_row(fresh, buffer, row, w[t, e, g, j], u[t, e, g], row)
                    add_scaled(out[t, e, g, j // block], q[t, e, g, j], row)


@_loops
def _recur_backward(
    form: int, rows: tuple[int, int], period: int, cut: int, buffers: Arrays, inputs: Arrays, grads: Arrays
) -> None:
    """The adjoint of `_recur`. `grads` are the gradients of y, of the last memory, which becomes that of the first, and
    of a, b, rates (on_rates [B, G, J, I]), u, w, q, initially zero. Buffers: M before every `period`-th step; memories
    [period + 1, J, I], decays [period, J, I] and a row [I], to be overwritten."""
    saved, memories, decays, buffer = buffers
    a, b, rates, u, w, q, reset = inputs
    grad, carried, on_a, on_b, on_rates, on_u, on_w, on_q = grads
    groups, height = a.shape[2], w.shape[3]
    block = height // grad.shape[3]
    for e in range(rows[0], rows[1]):
        for g in range(groups):
            for index in range(len(saved) - 1, -1, -1):
                begin, end = index * period, min((index + 1) * period, len(a))
                for j in range(height):
                    copy(saved[index, e, g, j], memories[0, j])
                for t in range(begin, end):  # recompute the period
                    s = t - begin
                    for j in range(height):
                        if not reset[t, e]:
                            _decay_row(form, a[t, e, g], b[t, e, g], rates[g], j, decays[s, j])
                        before, after = memories[s, j], memories[s + 1, j]
                        _step_row(reset[t, e], decays[s, j], before, w[t, e, g, j], u[t, e, g], after)
                for t in range(end - 1, begin - 1, -1):
                    s = t - begin
                    for j in range(height):
                        dm, dy = carried[e, g, j], grad[t, e, g, j // block]
                        add_scaled(dm, q[t, e, g, j], dy)
                        on_q[t, e, g, j] = dot(dy, memories[s + 1, j])
                        on_w[t, e, g, j] = dot(dm, u[t, e, g])
                        add_scaled(on_u[t, e, g], w[t, e, g, j], dm)
                        if not reset[t, e]:
                            _through_decay(form, dm, memories[s, j], decays[s, j], buffer)
                            factors = a[t, e, g], b[t, e, g], rates[g]
                            _to_factors(buffer, factors, j, on_a[t, e, g], on_b[t, e, g], on_rates[e, g])
                        if gradient_ends(reset, cut, t, e):
                            dm[:] = 0
                            continue
                        factor = decays[s, j]
                        for i in range(len(dm)):
                            dm[i] *= factor[i]
