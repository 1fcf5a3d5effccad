"""The LSTM's unroll by compiled functions, as one node of autograd's graph, for a CPU."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import routes
from .arrays import Array, arrays
from .blas import gemm
from .groups import COLUMNS, COLUMNS_OF_A_STEP, by_columns, matrix_gradients, turned
from .lstm_kernels import Inputs, Record, backward, forward

if TYPE_CHECKING:
    from ..lstm import LSTM


def suits(core: "LSTM", inputs: Tensor) -> bool:
    """Whether this route can be used: parts as they were made, a library for products."""
    return routes.stands_for(core, inputs) and gemm(inputs.dtype) != 0


def run(
    gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, reset: Tensor, bptt_length: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h [T, B, H] after each step, the last h and the last c.

    Args:
        gates: W_x x + b, [T, B, 4 H].
        weight: W_h, [4 H, H].
        h, c: before the first step, [B, H].
        reset, bptt_length: as in `Core.unroll`.
    """
    (resets,) = arrays(reset)
    plan = _Plan(resets, bptt_length or 0, torch.is_grad_enabled())
    return _Unroll.apply(plan, gates, weight, h, c)  # pyright: ignore


class _Plan(NamedTuple):
    reset: Array
    cut: int
    recording: bool


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, weight, h, c = arrays(*tensors)
        steps, batch = plan.reset.shape
        given = Inputs(gates, plan.reset, h, c)
        record = _record(steps, batch, given) if plan.recording else None
        out, cells = tensors[2].new_empty(steps, *h.shape), torch.empty_like(tensors[3])
        address, results = gemm(out.dtype), (out.numpy(), cells.numpy())
        # Products of few rows are faster with the matrix turned, but a step alone is not worth turning it.
        many = steps > 1
        width, weight = (COLUMNS, turned(weight)) if many else (COLUMNS_OF_A_STEP, weight)

        def columns(_: int, first: int, last: int) -> None:
            own = record or _record(1, min(width, batch), given)
            forward(address, first, last, given, weight, many, own, *results)

        by_columns(columns, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(tensors[1])
        return out, out[-1].clone(), cells

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        (weight,) = arrays(*ctx.saved_tensors)
        grad_gates = np.empty_like(record.gates)
        above = grad_out.contiguous().numpy()
        state = [grad.contiguous().numpy().copy() for grad in grad_last]
        address = gemm(grad_out.dtype)

        def columns(_: int, first: int, last: int) -> None:
            backward(address, first, last, plan.cut, plan.reset, weight, record, above, grad_gates, *state)

        by_columns(columns, above.shape[1], COLUMNS)
        (grad_weight,) = matrix_gradients([(grad_gates, record.h)])
        return None, torch.from_numpy(grad_gates), grad_weight, *map(torch.from_numpy, state)


def _record(steps: int, batch: int, given: Inputs) -> Record:
    size = given.h.shape[1]

    def room(width: int) -> Array:
        return np.empty((steps, batch, width), given.h.dtype)

    return Record(room(size), room(size), room(4 * size), room(size))
