"""MNM's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .... import bf16
from .. import routes
from ..elementwise import Array
from .arrays import Gradients, Inputs, Leaves, Record, Result, make_record
from .backward import backward
from .forward import forward


def run(
    tensors: Leaves, reset: Tensor, initial: Tensor, scales: tuple[float, float], heads: int, bptt_length: int | None
) -> Result:
    """Run all T steps; reset and bptt_length are those of `Core.unroll`.

    Args:
        tensors: the inputs' contribution to the controller's gates, the state before the first step, and parameters.
        initial: the memory at the start of an episode, [3, d, d].
        scales: scale s of the write, and the factor of the meta error.
        heads: H.
    """
    (steps, batch, _), size = tensors.gates.shape, tensors.recurrent.shape[0] // 4
    routes.check(
        "MNM",
        tensors.gates,
        h=(tensors.h, (batch, size)),
        c=(tensors.c, (batch, size)),
        read=(tensors.read, (batch, initial.shape[1])),
        memory=(tensors.memory, (batch, *initial.shape)),
        reset=(reset, (steps, batch)),
    )
    resets, first = routes.arrays(reset, initial)
    recording = torch.is_grad_enabled()
    replaced = resets & recording
    replaced[0] = False  # no gradient reaches the memory that the first step replaces
    indices = np.where(replaced, replaced.cumsum().reshape(replaced.shape) - 1, -1)
    inputs = Inputs(resets, indices, first, np.asarray(scales, first.dtype), bptt_length or 0)
    plan = _Plan(inputs, heads, recording, routes.routine(tensors.gates.dtype, tensors.recurrent))
    return Result(*_Unroll.apply(plan, *tensors))  # pyright: ignore


def prepare(
    tensors: Leaves, initial: Tensor, scales: tuple[float, float], heads: int
) -> Callable[[Array, Tensor, Tensor, Tensor, Array], tuple[Tensor, Tensor, Tensor]]:
    """Prepare a step for acting: step(gates [B, 4 S], h, c, read, reset bool [B]) returns [h ; v^r] [B, S + d], the
    next cells and meta errors [B], and overwrites `tensors.memory`. Arguments as in `run`, with T = 1."""
    batch, (first, memory) = len(tensors.h), routes.arrays(initial, tensors.memory)
    address, scale = routes.routine(tensors.gates.dtype, tensors.recurrent), np.asarray(scales, first.dtype)
    weights, none = Leaves(*routes.arrays(*tensors)), np.full((1, batch), -1)
    width = min(batch, routes.GROUP_OF_A_STEP)
    record = make_record(1, batch, weights, heads, 0)
    weights = _arrange(address, tensors, weights)

    def step(gates: Array, h: Tensor, c: Tensor, read: Tensor, reset: Array) -> tuple[Tensor, Tensor, Tensor]:
        states = dict(zip(("h", "c", "read"), routes.arrays(h, c, read), strict=True))
        now = weights._replace(gates=gates[np.newaxis], **states)
        inputs = Inputs(reset[np.newaxis], none, first, scale, 0)
        out, errors = h.new_empty(1, batch, h.shape[1] + read.shape[1]), h.new_empty(1, batch)
        cells = c.new_empty(c.shape)
        result = Result(out.numpy(), errors.numpy(), cells.numpy(), memory)
        for begin in range(0, batch, width):
            forward(address, begin, min(begin + width, batch), inputs, now, record, result)
        bf16.release()
        return out[0], cells, errors[0]

    return step


class _Plan(NamedTuple):
    inputs: Inputs
    heads: int
    recording: bool  # Whether a backward pass may follow
    routine: int  # Address of the multiplication routine


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *leaves: Tensor) -> tuple[Tensor, ...]:
        tensors, weights, inputs = Leaves(*leaves), Leaves(*routes.arrays(*leaves)), plan.inputs
        (steps, batch), size, width = inputs.reset.shape, weights.h.shape[1], weights.read.shape[1]
        weights = _arrange(plan.routine, tensors, weights)
        record = make_record(steps if plan.recording else 1, batch, weights, plan.heads, inputs.kept.max() + 1)
        out, errors = tensors.gates.new_empty(steps, batch, size + width), tensors.gates.new_empty(steps, batch)
        outputs = out, errors, tensors.c.new_empty(tensors.c.shape), tensors.memory.clone()
        group, result = routes.group_size(batch), Result(*(output.numpy() for output in outputs))

        def work(_: int, first: int, last: int) -> None:
            forward(plan.routine, first, last, inputs, weights, record, result)

        routes.by_groups(work, batch, group)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors, out, outputs[-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        *leaves, out, last_memory = ctx.saved_tensors
        tensors, weights = Leaves(*leaves), Leaves(*routes.arrays(*leaves))
        if plan.routine < 0:
            weights = _arrange(plan.routine, tensors, weights, turn=True)
        (memory,), above = routes.arrays(last_memory.clone()), Result(*routes.arrays(*grad))
        group = routes.group_size(len(memory))
        sums = np.zeros((2, routes.groups(len(memory), group), len(weights.norm_gain)), record.normal.dtype)
        grads = Gradients(
            gates=np.empty_like(record.gates),
            heads=np.empty_like(record.heads),
            targets=np.empty_like(record.targets),
            norm_gain=sums[0],
            norm_bias=sums[1],
            rate=np.empty_like(record.beta),
            joined=np.zeros(record.joined.shape[1:], record.joined.dtype),
            c=above.c.copy(),
            memory=above.memory.copy(),
        )

        def work(index: int, first: int, last: int) -> None:
            own = grads._replace(norm_gain=sums[0, index], norm_bias=sums[1, index])
            backward(plan.routine, first, last, plan.inputs, weights, record, memory, above, own)

        routes.by_groups(work, len(memory), group)
        return None, *_collect(tensors, grads, record, out.numpy(), plan.routine < 0)


def _arrange(address: int, tensors: Leaves, weights: Leaves, turn: bool = False) -> Leaves:
    """Return the weights with matrices in the layout of the forward pass; for a routine with bfloat16 factors and with
    `turn`, of the backward pass."""
    names = "recurrent", "heads", "targets"
    if address < 0:
        return weights._replace(**{name: routes.packed(getattr(tensors, name), turn=turn) for name in names})
    return weights._replace(**{name: routes.turned(getattr(weights, name)) for name in names})


def _collect(tensors: Leaves, grads: Gradients, record: Record, out: Array, rounded: bool) -> Leaves:
    size, width = grads.c.shape[1], len(tensors.rate)
    pairs = {
        "recurrent": (grads.gates, record.joined),
        "heads": (grads.heads, np.ascontiguousarray(out[..., :size])),
        "rate": (grads.rate, record.heads[..., :width]),
    }
    if len(tensors.targets):
        pairs["targets"] = grads.targets, record.values
    matrices = dict(zip(pairs, routes.matrix_gradients(list(pairs.values()), rounded), strict=True))
    biases = {"heads_bias": grads.heads, "rate_bias": grads.rate, "targets_bias": grads.targets}
    others = {name: getattr(grads, name) for name in ("gates", "c", "memory")}
    others |= {"h": grads.joined[:, :size], "read": grads.joined[:, size:]}
    others |= {"norm_gain": grads.norm_gain.sum(0), "norm_bias": grads.norm_bias.sum(0)}
    return Leaves(
        **{"targets": tensors.targets} | matrices | {"rate": matrices["rate"][0]},
        **{name: torch.from_numpy(grad).flatten(0, -2).sum(0) for name, grad in biases.items()},
        **{name: torch.from_numpy(grad) for name, grad in others.items()},
    )
