"""The relational memory core's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .... import bf16
from ..elementwise import Array
from ..routes import (
    GROUP,
    GROUP_OF_A_STEP,
    arrays,
    by_groups,
    check,
    groups,
    matrix_gradients,
    packed,
    refuse_second_derivative,
    routine,
    turned,
)
from .arrays import VECTORS, Leaves, Record, Resets, make_gradients, make_record
from .kernels import backward, forward


def run(
    leaves: Leaves, mlp: list[Tensor], initial: Tensor, heads: int, reset: Tensor | None, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """Return the memories [T, B, N, F] after each step, and the last memory.

    Args:
        leaves: inputs, state and parameters, as tensors.
        mlp: the weights that `leaves.mlp` stacks.
        initial: the memory at the start of an episode, [N, F].
        heads: H.
        reset, bptt_length: as in `Core.unroll`; without resets, `reset` may be None.
    """
    row: Tensor = leaves.row
    steps = row.shape[:2]
    reset = torch.zeros(steps, dtype=torch.bool) if reset is None else reset
    check("RMC", row, memory=(leaves.memory, (steps[1], *initial.shape)), reset=(reset, steps))
    resets = Resets(*arrays(reset, initial))
    matrices = [leaves.qkv], mlp, [leaves.gates]
    address = routine(row.dtype, leaves.qkv)
    plan = _Plan(heads, resets, bptt_length or 0, torch.is_grad_enabled(), address, matrices)
    return _Unroll.apply(plan, *leaves)  # pyright: ignore


def prepare(
    tensors: Leaves, mlp: list[Tensor], initial: Tensor, heads: int
) -> Callable[[Array, Array, Array, Tensor, Array], Tensor]:
    """Prepare a step for acting: step(row, gates_input, places, memory, reset bool [B]) returns the next memory
    [B, N, F]. The first three arguments are those of `Leaves`, with T = 1. Arguments as in `run`."""
    address = routine(tensors.row.dtype, tensors.qkv)
    leaves, (first,) = Leaves(*arrays(*tensors)), arrays(initial)
    if address < 0:
        plan = _Plan(heads, Resets(first, first), 0, False, address, ([tensors.qkv], mlp, [tensors.gates]))
        leaves = plan.pack(leaves)
    batch = len(leaves.memory)
    width = min(batch, GROUP_OF_A_STEP)
    record = make_record(leaves, heads, 1, width)

    def step(row: Array, gates: Array, places: Array, memory: Tensor, reset: Array) -> Tensor:
        out, resets = memory.new_empty(1, *memory.shape), Resets(reset[np.newaxis], first)
        now, values = leaves._replace(row=row, gates_input=gates, places=places, memory=arrays(memory)[0]), out.numpy()
        for begin in range(0, batch, width):
            forward(address, begin, min(begin + width, batch), resets, now, False, record, values)
        bf16.release()
        return out[0]

    return step


class _Plan(NamedTuple):
    """Settings of the compiled loop."""

    heads: int
    resets: Resets
    cut: int  # Number of steps after which gradients are truncated; 0: none
    recording: bool  # Whether a backward pass may follow
    routine: int  # Address of the multiplication routine
    matrices: tuple[list[Tensor], list[Tensor], list[Tensor]]  # Weights of `qkv`, `mlp` and `gates`, before stacking

    def pack(self, leaves: Leaves, turn: bool = False) -> Leaves:
        """Pack the weights for the routine with bfloat16 factors; with `turn`, for the gradient."""
        qkv, mlp, gates = (packed(*part, turn=turn) for part in self.matrices)
        return leaves._replace(qkv=qkv, mlp=mlp.reshape(*leaves.mlp.shape[:1], -1, mlp.shape[-1]), gates=gates)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        leaves = Leaves(*arrays(*tensors))
        (steps, batch), memory = plan.resets.at.shape, Leaves(*tensors).memory
        record = make_record(leaves, plan.heads, steps, batch) if plan.recording else None
        out = memory.new_empty(steps, *memory.shape)
        address, values = plan.routine, out.numpy()
        # Transposed matrices are faster for few rows, but transposing does not pay for a single step.
        many = steps > 1
        width = GROUP if many else GROUP_OF_A_STEP
        if address < 0:
            leaves = plan.pack(leaves)
        elif many:
            leaves = leaves._replace(qkv=turned(leaves.qkv), mlp=turned(leaves.mlp), gates=turned(leaves.gates))

        def work(_: int, first: int, last: int) -> None:
            buffers = record or make_record(leaves, plan.heads, 1, min(width, batch))
            forward(address, first, last, plan.resets, leaves, many, buffers, values)

        by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        leaves, batch = Leaves(*arrays(*ctx.saved_tensors)), len(grad_last)
        grads = make_gradients(leaves, record, grad_last, groups(batch, GROUP))
        address, above = plan.routine, grad_out.contiguous().numpy()
        if address < 0:
            leaves = plan.pack(leaves, turn=True)

        def work(group: int, first: int, last: int) -> None:
            backward(address, group, first, last, plan.cut, plan.resets, leaves, record, above, grads)

        by_groups(work, batch, GROUP)
        return None, *_collect(grads, record, address < 0)


def _collect(grads: Leaves, record: Record, rounded: bool) -> Leaves:
    """Collect the gradients of all leaves."""
    pairs = [(grads.qkv, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
    if record.gates.size:
        pairs.append((grads.gates, record.squashed))
    qkv, *rest = matrix_gradients(pairs, rounded)
    return Leaves(
        row=torch.from_numpy(grads.row),
        gates_input=torch.from_numpy(grads.gates_input),
        places=torch.from_numpy(grads.places),
        memory=torch.from_numpy(grads.memory),
        qkv=qkv,
        mlp=torch.stack(rest[: len(grads.mlp)]),
        gates=rest[-1] if record.gates.size else qkv.new_empty(0, qkv.shape[1]),
        **{name: torch.from_numpy(getattr(grads, name).sum(0)) for name in VECTORS},
    )
