"""Matrix memories with a decay per element on a CPU: compiled loops (kernels.py) as one node of autograd's graph.

Differentiable once. Environments are shared between threads (`agents/threads.py`); shapes: kernels.py.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..elementwise import Array
from ..routes import arrays, by_groups, check
from .kernels import remember, remember_backward

ENVIRONMENTS = 8  # Of one piece of work


def remember_compiled(
    form: int,
    steps: tuple[Tensor, ...],
    reads: int,
    reset: Tensor,
    start: Tensor,
    bptt_length: int | None,
) -> tuple[Tensor, Tensor]:
    """y [T, B, G, R, I] and the last memory [B, G, J, I]. `steps` are a, b, rates, u, w, q."""
    a, b, rates, _, w, _ = steps
    (*before, columns), height = a.shape, w.shape[3]
    wide, tall = (*before, columns), (*before, height)
    check(
        "hadamard",
        a,
        reset=(reset, before[:2]),
        b=(b, tall if b.shape[3] else (*before, 0)),
        rates=(rates, (before[2], 0 if b.shape[3] else height, columns)),
        **dict(zip("uwq", zip(steps[3:], (wide, tall, tall), strict=True), strict=True)),
        start=(start, (*before[1:], height, columns)),
    )
    return _Remember.apply(form, reads, bptt_length or 0, reset, start, *steps)  # pyright: ignore


class _Remember(torch.autograd.Function):
    """`remember` and its adjoint."""

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

        def run(number: int, first: int, last: int) -> None:
            rows = np.array([first, last])
            remember(form, rows, period, _like(a, columns), inputs, *outputs)

        by_groups(run, batch, ENVIRONMENTS)
        ctx.form, ctx.cut, ctx.period = form, cut, period
        ctx.save_for_backward(reset, saved, *steps)
        return out, memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_memory: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        """dy and that of the last memory -> gradients of the start and of a, b, rates, u, w, q."""
        reset, saved, *steps = ctx.saved_tensors
        a, (batch, _, height, columns) = steps[0], saved.shape[1:]
        carried = grad_memory.clone(memory_format=torch.contiguous_format)
        results = [x.new_zeros(x.shape) for x in steps]
        results[2] = a.new_zeros(batch, *steps[2].shape)
        inputs, gradients = tuple(arrays(*steps, reset)), tuple(arrays(grad, carried, *results))

        def run(number: int, first: int, last: int) -> None:
            period = ctx.period
            buffers = _like(a, period + 1, height, columns), _like(a, period, height, columns), _like(a, columns)
            rows = np.array([first, last])
            remember_backward(ctx.form, rows, period, ctx.cut, buffers, inputs, saved.numpy(), gradients)

        by_groups(run, batch, ENVIRONMENTS)
        results[2] = results[2].sum(0)
        return None, None, None, None, carried, *results


def _like(tensor: Tensor, *shape: int) -> Array:
    return tensor.new_empty(shape).numpy()
