"""The relational memory core's unroll by compiled functions, as one node of autograd's graph, for a CPU."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..blas import gemm
from ..native import Array
from .columns import COLUMNS, COLUMNS_OF_A_STEP, by_columns, groups, matrix_gradients, turned
from .recurrence import refuse_second_derivative
from .rmc_arrays import Gradients, Inputs, Record, Vectors, Weights, make_gradients, make_record
from .rmc_kernels import backward, forward
from .rmc_steps import RMCShape


def suits(shape: RMCShape, tensor: Tensor) -> bool:
    """Whether this form can be used; it knows one block of attention only."""
    return shape.blocks == 1 and native.suits(tensor)


def run(
    shape: RMCShape,
    tensors: Sequence[Tensor],
    memory: Tensor,
    initial: Tensor,
    reset: Tensor,
    bptt_length: int | None,
) -> tuple[Tensor, Tensor]:
    """Memories [T, B, N, F] after each step, and the last one.

    Args:
        shape: of the core.
        tensors: what `RMCSteps` takes.
        memory: before the first step, [B, N, F].
        initial: the memory of a new episode, [N, F].
        reset, bptt_length: as in `Core.unroll`.
    """
    first, resets = native.arrays(initial, reset)
    plan = _Plan(shape, first, resets, bptt_length or 0, torch.is_grad_enabled())
    return _Unroll.apply(plan, memory, *tensors)  # pyright: ignore


class _Plan(NamedTuple):
    shape: RMCShape
    initial: Array
    reset: Array
    cut: int
    recording: bool


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, memory: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given, weights = _arguments(plan, memory, tensors)
        (steps, batch), size = plan.reset.shape, len(weights.qkv)
        record = make_record(plan.shape, steps, batch, given, size) if plan.recording else None
        out = memory.new_empty(steps, *memory.shape)
        address, numbers = gemm(memory.dtype), out.numpy()
        # Products of few rows are faster with the matrices turned, but a step alone is not worth turning them.
        many = steps > 1
        width = COLUMNS if many else COLUMNS_OF_A_STEP
        if many:
            weights = weights._replace(qkv=turned(weights.qkv), mlp=turned(weights.mlp), gates=turned(weights.gates))

        def columns(_: int, first: int, last: int) -> None:
            own = record or make_record(plan.shape, 1, min(width, batch), given, size)
            forward(address, first, last, given, weights, many, own, numbers)

        by_columns(columns, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(memory, *tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        memory, *tensors = ctx.saved_tensors
        given, weights = _arguments(plan, memory, tensors)
        batch = len(given.state)
        grads = make_gradients(given, weights, record, grad_last, groups(batch, COLUMNS))
        address, above = gemm(memory.dtype), grad_out.contiguous().numpy()

        def columns(group: int, first: int, last: int) -> None:
            backward(address, group, first, last, plan.cut, given, weights, record, above, grads)

        by_columns(columns, batch, COLUMNS)
        return None, torch.from_numpy(grads.state), *_in_order(plan.shape, grads, record)


def _arguments(plan: _Plan, memory: Tensor, tensors: Sequence[Tensor]) -> tuple[Inputs, Weights]:
    """The tensors of `RMCSteps` as compiled functions take them, matrices as they are: [outputs, inputs]."""
    row, *rest = native.arrays(*tensors)
    (state,) = native.arrays(memory)
    steps, batch = plan.reset.shape
    gates_input = rest.pop(0) if plan.shape.gates else np.empty((steps, batch, 0), state.dtype)
    qkv, *vectors = rest[:8]
    mlp = rest[8 : 8 + 2 * plan.shape.mlp_layers]
    gates, gates_bias = rest[-2:] if plan.shape.gates else (np.empty((0, state.shape[2]), state.dtype), state[0, 0, :0])
    weights = Weights(qkv, np.stack(mlp[::2]), gates, Vectors(*vectors, np.stack(mlp[1::2]), gates_bias))  # pyright: ignore
    return Inputs(row, gates_input, plan.reset, plan.initial, state), weights


def _in_order(shape: RMCShape, grads: Gradients, record: Record) -> list[Tensor]:
    """Gradients of the tensors of `RMCSteps`."""
    pairs = [(grads.projected, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
    if shape.gates:
        pairs.append((grads.gates, record.squashed))
    qkv, *rest = matrix_gradients(pairs)
    bias, *norms, mlp_bias, gates_bias = (torch.from_numpy(sums.sum(0)) for sums in grads.sums)
    inputs = [torch.from_numpy(grads.row)]
    layers = [part for pair in zip(rest, mlp_bias, strict=False) for part in pair]
    gates: list[Tensor] = []
    if shape.gates:
        inputs.append(torch.from_numpy(grads.gates_input))
        gates = [rest[-1], gates_bias]
    return [*inputs, qkv, bias, *norms, *layers, *gates]
