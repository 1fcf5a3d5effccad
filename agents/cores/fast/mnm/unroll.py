"""MNM's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .... import bf16
from ..elementwise import Array
from ..routes import (
    GROUP_OF_A_STEP,
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
from .arrays import Gradients, Inputs, Leaves, Record, make_record
from .backward import backward
from .forward import forward

MATRICES = ("recurrent", "heads", "targets")


class Result(NamedTuple):
    """[h ; v^r] [T, B, S + d] and meta errors [T, B] of every step, and the last cells and memory."""

    joined: Tensor
    errors: Tensor
    c: Tensor
    memory: Tensor


def run(
    tensors: Leaves, reset: Tensor, initial: Tensor, scales: tuple[float, float], heads: int, bptt_length: int | None
) -> Result:
    """Run all T steps.

    Args:
        tensors: the inputs' contribution to the controller's gates, the state before the first step, and parameters.
        reset, bptt_length: as in `Core.unroll`.
        initial: the memory at the start of an episode, [3, d, d].
        scales: scale s of the write, and the factor of the meta error.
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
    recording = torch.is_grad_enabled()
    replaced = resets & recording
    replaced[0] = False  # no gradient reaches the memory that the first step replaces
    indices = np.where(replaced, replaced.cumsum().reshape(replaced.shape) - 1, -1)
    inputs = Inputs(resets, indices, first, np.asarray(scales, first.dtype))
    address = routine(tensors.gates.dtype, tensors.recurrent)
    plan = _Plan(inputs, heads, bptt_length or 0, recording, address)
    return Result(*_Unroll.apply(plan, *tensors))  # pyright: ignore


def prepare(
    tensors: Leaves, initial: Tensor, scales: tuple[float, float], heads: int
) -> Callable[[Array, Tensor, Tensor, Tensor, Array], tuple[Tensor, Tensor, Tensor]]:
    """Prepare a step for acting: step(gates [B, 4 S], h, c, read, reset bool [B]) returns [h ; v^r] [B, S + d], the
    next cells and meta errors [B], and overwrites `tensors.memory`. Arguments as in `run`, with T = 1."""
    batch, (first, memory) = len(tensors.h), arrays(initial, tensors.memory)
    address, scale = routine(tensors.gates.dtype, tensors.recurrent), np.asarray(scales, first.dtype)
    weights, none = Leaves(*arrays(*tensors)), np.full((1, batch), -1)
    width = min(batch, GROUP_OF_A_STEP)
    record = make_record(1, width, weights, heads, 0)
    weights = _transpose(address, tensors, weights)

    def step(gates: Array, h: Tensor, c: Tensor, read: Tensor, reset: Array) -> tuple[Tensor, Tensor, Tensor]:
        states = dict(zip(("h", "c", "read"), arrays(h, c, read), strict=True))
        now, inputs = weights._replace(gates=gates[np.newaxis], **states), Inputs(reset[np.newaxis], none, first, scale)
        out, errors = h.new_empty(1, batch, h.shape[1] + read.shape[1]), h.new_empty(1, batch)
        cells = c.new_empty(c.shape)
        for begin in range(0, batch, width):
            results = out.numpy(), errors.numpy(), cells.numpy(), memory
            forward(address, begin, min(begin + width, batch), inputs, now, record, *results)
        bf16.release()
        return out[0], cells, errors[0]

    return step


class _Plan(NamedTuple):
    inputs: Inputs
    heads: int
    cut: int
    recording: bool
    routine: int  # Address of the multiplication routine


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *leaves: Tensor) -> tuple[Tensor, ...]:
        tensors, weights, inputs = Leaves(*leaves), Leaves(*arrays(*leaves)), plan.inputs
        steps, batch = inputs.reset.shape
        weights = _transpose(plan.routine, tensors, weights)
        record = make_record(steps, batch, weights, plan.heads, inputs.kept.max() + 1) if plan.recording else None
        size, width = weights.h.shape[1], weights.read.shape[1]
        out, errors = tensors.gates.new_empty(steps, batch, size + width), tensors.gates.new_empty(steps, batch)
        cells, memory = tensors.c.new_empty(tensors.c.shape), tensors.memory.clone()
        address, group = plan.routine, group_size(batch)
        results = [result.numpy() for result in (out, errors, cells, memory)]

        def work(_: int, first: int, last: int) -> None:
            buffers = record or make_record(1, min(group, batch), weights, plan.heads, 0)
            forward(address, first, last, inputs, weights, buffers, *results)

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
        tensors, weights = Leaves(*leaves), Leaves(*arrays(*leaves))
        if plan.routine < 0:
            weights = _pack(tensors, weights, turn=True)
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

        def work(index: int, first: int, last: int) -> None:
            above = grad_out, grad_errors
            backward(address, index, first, last, plan.cut, plan.inputs, weights, record, memory, *above, grads)

        by_groups(work, len(memory), group)
        return None, *_collect(tensors, grads, record, out.numpy(), address < 0)


def _transpose(address: int, tensors: Leaves, weights: Leaves) -> Leaves:
    """Return the weights with matrices in the layout of the forward pass."""
    if address < 0:
        return _pack(tensors, weights)
    return weights._replace(**{name: turned(getattr(weights, name)) for name in MATRICES})


def _pack(tensors: Leaves, weights: Leaves, turn: bool = False) -> Leaves:
    """Return the weights with matrices in the layout of a routine with bfloat16 factors."""
    return weights._replace(**{name: packed(getattr(tensors, name), turn=turn) for name in MATRICES})


def _collect(tensors: Leaves, grads: Gradients, record: Record, out: Array, rounded: bool) -> Leaves:
    """Collect the gradients of all tensors."""
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
    return Leaves(
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
