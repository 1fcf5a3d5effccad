"""Matrix memories with a decay per element over all steps of an unroll on a CPU, exact at resets.

    M_t = f(b_t a_t^T) * M_{t-1} + w_t u_t^T,   y_t = q_t^T M_t         M_{t-1} = 0 where an episode begins

Compiled loops (kernels.py) are one node of the autograd graph, differentiable once; they store neither M nor f for all
steps. Environments are divided among threads (`agents/threads.py`).

Shapes: T steps, B environments, G groups (heads), J rows, I columns.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..elementwise import Array
from ..routes import arrays, by_groups, check
from .kernels import COMPLEMENT, EXP, TANH, recur, recur_backward

FORMS = {"exp": EXP, "tanh": TANH, "complement": COMPLEMENT}
ENVIRONMENTS = 8  # Per piece of work


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
        decay: a [T, B, G, I], and b [T, B, G, J], or [G, J, I] if b is constant and P = b * a^T; None: b = 1.
        write: u [T, B, G, I], w [T, B, G, J].
        query: q [T, B, G, J].
        reset: bool [T, B]; where set, the memory before the step is zero, by selection.
        start: the memory before step 0 [B, G, J, I].
        bptt_length: no gradient passes from step t to step t - 1 where t is a multiple of this.
        reads: R; result r is read from rows r J / R to (r + 1) J / R.
    """
    (a, b), (u, w) = decay, write
    (*before, columns), height = a.shape, w.shape[3]
    rates = b if b is not None and b.dim() == 3 else a.new_empty(before[2], 0, columns)
    b = b if b is not None and b.dim() == 4 else a.new_empty(*before, 0)
    wide, tall = (*before, columns), (*before, height)
    check(
        "hadamard",
        a,
        reset=(reset, before[:2]),
        b=(b, tall if b.shape[3] else (*before, 0)),
        rates=(rates, (before[2], height if rates.shape[1] else 0, columns)),
        u=(u, wide),
        w=(w, tall),
        q=(query, tall),
        start=(start, (*before[1:], height, columns)),
    )
    steps = (a, b, rates, u, w, query)
    return _Remember.apply(FORMS[form], reads, bptt_length or 0, reset, start, *steps)  # pyright: ignore


class _Remember(torch.autograd.Function):
    """`recur` and its adjoint."""

    @staticmethod
    def forward(
        ctx: Any, form: int, reads: int, cut: int, reset: Tensor, start: Tensor, *steps: Tensor
    ) -> tuple[Tensor, Tensor]:
        """start [B, G, J, I] and a, b, rates, u, w, q -> y, the last memory."""
        a = steps[0]
        length, batch, groups, columns = a.shape
        period = math.isqrt(length - 1) + 1
        out = a.new_zeros(length, batch, groups, reads, columns)
        saved = a.new_empty(-(-length // period), *start.shape)
        memory = start.clone(memory_format=torch.contiguous_format)
        inputs, outputs = tuple(arrays(*steps, reset)), arrays(out, saved, memory)

        def run(_: int, first: int, last: int) -> None:
            rows = np.array([first, last])
            recur(form, rows, period, _like(a, columns), inputs, *outputs)

        by_groups(run, batch, ENVIRONMENTS)
        ctx.form, ctx.cut, ctx.period = form, cut, period
        ctx.save_for_backward(reset, saved, *steps)
        return out, memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_memory: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        """Gradients of y and of the last memory -> gradients of the start and of a, b, rates, u, w, q."""
        reset, saved, *steps = ctx.saved_tensors
        a, (batch, _, height, columns) = steps[0], saved.shape[1:]
        carried = grad_memory.clone(memory_format=torch.contiguous_format)
        results = [x.new_zeros(x.shape) for x in steps]
        results[2] = a.new_zeros(batch, *steps[2].shape)
        inputs, gradients = tuple(arrays(*steps, reset)), tuple(arrays(grad, carried, *results))

        def run(_: int, first: int, last: int) -> None:
            period = ctx.period
            buffers = _like(a, period + 1, height, columns), _like(a, period, height, columns), _like(a, columns)
            rows = np.array([first, last])
            recur_backward(ctx.form, rows, period, ctx.cut, buffers, inputs, saved.numpy(), gradients)

        by_groups(run, batch, ENVIRONMENTS)
        results[2] = results[2].sum(0)
        return None, None, None, None, carried, *results


def _like(tensor: Tensor, *shape: int) -> Array:
    return tensor.new_empty(shape).numpy()
