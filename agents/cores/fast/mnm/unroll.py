"""MNM's unroll by compiled functions, as one node of autograd's graph, for a CPU."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..elementwise import Array
from ..routes import (
    arrays,
    by_groups,
    check,
    group_size,
    groups,
    matrix_gradients,
    packed,
    refuse_second_derivative,
    routine,
    turned,
)
from .arrays import Gradients, Inputs, Record, Weights, make_record
from .backward import backward
from .forward import forward


class Tensors(NamedTuple):
    """Differentiable inputs of the unroll; shapes as in arrays.py."""

    gates: Tensor
    h: Tensor
    c: Tensor
    read: Tensor
    memory: Tensor  # [B, 3, d, d], before the first step
    recurrent: Tensor
    heads: Tensor
    targets: Tensor
    heads_bias: Tensor
    rate: Tensor
    rate_bias: Tensor
    targets_bias: Tensor
    norm_gain: Tensor
    norm_bias: Tensor


class Result(NamedTuple):
    """[h ; v^r] [T, B, S + d] and meta errors [T, B] of every step, and the last cells and memory."""

    joined: Tensor
    errors: Tensor
    c: Tensor
    memory: Tensor


def run(
    tensors: Tensors, reset: Tensor, initial: Tensor, scales: tuple[float, float], heads: int, bptt_length: int | None
) -> Result:
    """All T steps.

    Args:
        tensors: the inputs' share of the controller's gates, the state before the first step, and parameters.
        reset, bptt_length: as in `Core.unroll`.
        initial: the memory that an episode begins with, [3, d, d].
        scales: see `_Plan`.
        heads: H.
    """
    (steps, batch, _), size = tensors.gates.shape, tensors.recurrent.shape[0] // 4
    check(
        "MNM",
        tensors.gates,
        h=(tensors.h, (batch, size)),
        c=(tensors.c, (batch, size)),
        read=(tensors.read, (batch, initial.shape[1])),
        memory=(tensors.memory, (batch, *initial.shape)),
        reset=(reset, (steps, batch)),
    )
    resets, first = arrays(reset, initial)
    address = routine(tensors.gates.dtype, tensors.recurrent)
    plan = _Plan(resets, first, scales, heads, bptt_length or 0, torch.is_grad_enabled(), address)
    return Result(*_Unroll.apply(plan, *tensors))  # pyright: ignore


class _Plan(NamedTuple):
    reset: Array
    initial: Array
    scales: tuple[float, float]  # Scale s of the write, and the factor of the meta error
    heads: int
    cut: int
    recording: bool
    routine: int  # Address of the multiplication routine


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *leaves: Tensor) -> tuple[Tensor, ...]:
        tensors = Tensors(*leaves)
        inputs, weights = _arguments(plan, tensors)
        (steps, batch), kind = plan.reset.shape, (len(weights.targets) > 0, len(weights.norm_gain) > 0)
        turns = packed_matrices(tensors) if plan.routine < 0 else [turned(each) for each in weights[:3]]
        weights = weights._replace(recurrent=turns[0], heads=turns[1], targets=turns[2])
        record = make_record(steps, batch, inputs, plan.heads, *kind, inputs.kept.max() + 1) if plan.recording else None
        if not plan.recording:
            inputs.kept.fill(-1)
        size, width = inputs.h.shape[1], inputs.read.shape[1]
        out, errors = tensors.gates.new_empty(steps, batch, size + width), tensors.gates.new_empty(steps, batch)
        cells, memory = tensors.c.new_empty(tensors.c.shape), tensors.memory.clone()
        address, group = plan.routine, group_size(batch)
        results = [result.numpy() for result in (out, errors, cells, memory)]

        def work(_: int, first: int, last: int) -> None:
            own = record or make_record(1, min(group, batch), inputs, plan.heads, *kind, 0)
            forward(address, first, last, inputs, weights, own, *results)

        by_groups(work, batch, group)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors, out, memory)
        return out, errors, cells, memory

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        *leaves, out, last_memory = ctx.saved_tensors
        tensors = Tensors(*leaves)
        inputs, weights = _arguments(plan, tensors)
        if plan.routine < 0:
            recurrent, heads, targets = packed_matrices(tensors, turn=True)
            weights = weights._replace(recurrent=recurrent, heads=heads, targets=targets)
        (memory,) = arrays(last_memory.clone())
        grad_out, grad_errors, grad_c, grad_memory = arrays(*grad)
        address, group = plan.routine, group_size(len(memory))
        sums = np.zeros((2, groups(len(memory), group), len(weights.norm_gain)), record.normal.dtype)
        grads = Gradients(
            gates=np.empty_like(record.gates),
            heads=np.empty_like(record.heads),
            targets=np.empty_like(record.targets),
            norm_gain=sums[0],
            norm_bias=sums[1],
            rate=np.empty_like(record.beta),
            joined=np.zeros(record.joined.shape[1:], out.numpy().dtype),
            c=grad_c.copy(),
            memory=grad_memory.copy(),
        )

        def work(number: int, first: int, last: int) -> None:
            above = grad_out, grad_errors
            backward(address, number, first, last, plan.cut, inputs, weights, record, memory, *above, grads)

        by_groups(work, len(memory), group)
        return None, *_named(tensors, grads, record, out.numpy(), address < 0)


def packed_matrices(tensors: Tensors, turn: bool = False) -> list[Array]:
    """`recurrent`, `heads` and `targets` in the layout of a routine with bfloat16 factors."""
    return [packed(each, turn=turn) for each in (tensors.recurrent, tensors.heads, tensors.targets)]


def _arguments(plan: _Plan, tensors: Tensors) -> tuple[Inputs, Weights]:
    """Arguments of compiled functions: inputs and weights, with matrices not transposed."""
    a = Tensors(*arrays(*tensors))  # pyright: ignore[reportArgumentType]
    replaced = plan.reset.copy()
    replaced[0] = False  # no gradient goes back to the memory that the first step replaces
    places = np.where(replaced, replaced.cumsum().reshape(replaced.shape) - 1, -1)
    scale = np.asarray(plan.scales, plan.initial.dtype)
    inputs = Inputs(a.gates, plan.reset, places, plan.initial, a.h, a.c, a.read, scale)  # pyright: ignore[reportArgumentType]
    return inputs, Weights(*(getattr(a, name) for name in Weights._fields))


def _named(tensors: Tensors, grads: Gradients, record: Record, out: Array, rounded: bool) -> Tensors:
    """Gradients of all tensors."""
    size = grads.c.shape[1]
    hidden = np.ascontiguousarray(out[..., :size])
    width = len(tensors.rate)
    pairs = [(grads.gates, record.joined), (grads.heads, hidden), (grads.rate, record.heads[..., :width])]
    local = len(tensors.targets) > 0
    if local:
        pairs.append((grads.targets, record.values))
    recurrent, heads, rate, *targets = matrix_gradients(pairs, rounded)
    joined = torch.from_numpy(grads.joined)
    heads_bias, rate_bias, targets_bias = (
        torch.from_numpy(grad).flatten(0, -2).sum(0) for grad in (grads.heads, grads.rate, grads.targets)
    )
    return Tensors(
        gates=torch.from_numpy(grads.gates),
        h=joined[:, :size],
        c=torch.from_numpy(grads.c),
        read=joined[:, size:],
        memory=torch.from_numpy(grads.memory),
        recurrent=recurrent,
        heads=heads,
        targets=targets[0] if local else tensors.targets,
        heads_bias=heads_bias,
        rate=rate[0],
        rate_bias=rate_bias,
        targets_bias=targets_bias,
        norm_gain=torch.from_numpy(grads.norm_gain.sum(0)),
        norm_bias=torch.from_numpy(grads.norm_bias.sum(0)),
    )
