"""The unroll of ConvLSTM by compiled functions, as one node of autograd's graph, for a CPU."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..blas import gemm
from ..elementwise import Array
from ..routes import arrays, by_groups, check, matrix_gradients, refuse_second_derivative
from .arrays import Gradients, Inputs, Record
from .kernels import backward, forward

PLACES_AT_ONCE = 400  # Rows per matrix multiplication: fewer need too many calls, more do not fit into a core's cache


def run(
    gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, places: Array, reset: Tensor, bptt_length: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h [T, B, P, C] after each step, the last h and the last c.

    Args:
        gates: the inputs' share with all biases, [T, B, P, 4 C].
        weight: of the convolution, [4 C, K C], with contiguous channels of each place of the kernel.
        h, c: state before the first step, [B, P, C].
        places: int [P, K], input places of every place's kernel; -1 is the padding.
        reset, bptt_length: as in `Core.unroll`.
    """
    steps, batch, place_count, width = gates.shape
    state = (batch, place_count, width // 4)
    check("ConvLSTM", gates, h=(h, state), c=(c, state), reset=(reset, (steps, batch)))
    (resets,) = arrays(reset)
    plan = _Plan(places, resets, bptt_length or 0, torch.is_grad_enabled())
    return _Unroll.apply(plan, gates, weight, h, c)  # pyright: ignore


class _Plan(NamedTuple):
    places: Array
    reset: Array
    cut: int
    recording: bool

    @property
    def width(self) -> int:
        return max(1, PLACES_AT_ONCE // len(self.places))


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, weight, h, c = arrays(*tensors)
        steps, batch = plan.reset.shape
        inputs = Inputs(gates, plan.places, plan.reset, h, c)
        record = _record(steps, batch, inputs) if plan.recording else None
        out, cells = tensors[2].new_empty(steps, *h.shape), tensors[3].new_empty(c.shape)
        address, results = gemm(out.dtype), (out.numpy(), cells.numpy())

        def work(_: int, first: int, last: int) -> None:
            forward(
                address, first, last, inputs, weight, record or _record(1, min(plan.width, batch), inputs), *results
            )

        by_groups(work, batch, plan.width)
        if plan.recording:
            ctx.plan, ctx.inputs, ctx.record = plan, inputs, record
            ctx.save_for_backward(tensors[1])
        return out, out[-1].clone(), cells

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, inputs, record = ctx.plan, ctx.inputs, ctx.record
        (weight,) = arrays(*ctx.saved_tensors)
        above = grad_out.contiguous().numpy()
        h, c = (grad.flatten(0, 1).contiguous().numpy().copy() for grad in grad_last)
        grads = Gradients(np.empty_like(record.gates), np.empty_like(record.seen[0]), h, c)
        address = gemm(grad_out.dtype)

        def work(_: int, first: int, last: int) -> None:
            backward(address, first, last, plan.cut, inputs, weight, record, above, grads)

        by_groups(work, above.shape[1], plan.width)
        (grad_weight,) = matrix_gradients([(grads.gates, record.seen)])
        to_gates = torch.from_numpy(grads.gates).view(inputs.gates.shape)
        return None, to_gates, grad_weight, *(torch.from_numpy(grad).view(inputs.h.shape) for grad in (h, c))


def _record(steps: int, batch: int, inputs: Inputs) -> Record:
    def room(width: int) -> Array:
        return np.empty((steps, batch * len(inputs.places), width), inputs.h.dtype)

    size = inputs.h.shape[2]
    return Record(room(inputs.places.shape[1] * size), room(size), room(4 * size), room(size))
