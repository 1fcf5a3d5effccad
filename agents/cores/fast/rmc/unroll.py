"""The relational memory core's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .... import bf16
from .. import routes
from ..elementwise import Array
from .arrays import VECTORS, Leaves, Record, Settings, make_gradients, make_record
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
    routes.check("RMC", row, memory=(leaves.memory, (steps[1], *initial.shape)), reset=(reset, steps))
    resets, first = routes.arrays(reset, initial)
    settings = Settings(resets, first, False, bptt_length or 0)
    plan = _Plan(heads, settings, torch.is_grad_enabled(), routes.routine(row.dtype, leaves.qkv), mlp)
    return _Unroll.apply(plan, *leaves)  # pyright: ignore


def prepare(
    tensors: Leaves, mlp: list[Tensor], initial: Tensor, heads: int
) -> Callable[[Array, Array, Tensor, Array], Tensor]:
    """Prepare a step for acting: step(row, gates_input, memory, reset bool [B]) returns the next memory [B, N, F].
    The first two arguments are those of `Leaves`, with T = 1. Arguments as in `run`."""
    address = routes.routine(tensors.row.dtype, tensors.qkv)
    leaves, (first,) = Leaves(*routes.arrays(*tensors)), routes.arrays(initial)
    if address < 0:
        leaves = _pack(tensors, leaves, mlp)
    batch = len(leaves.memory)
    width = min(batch, routes.GROUP_OF_A_STEP)
    record = make_record(leaves, heads, 1, batch)

    def step(row: Array, gates: Array, memory: Tensor, reset: Array) -> Tensor:
        out, settings = memory.new_empty(1, *memory.shape), Settings(reset[np.newaxis], first, False, 0)
        (before,), values = routes.arrays(memory), out.numpy()
        now = leaves._replace(row=row, gates_input=gates, memory=before)
        for begin in range(0, batch, width):
            forward(address, begin, min(begin + width, batch), settings, now, record, values)
        bf16.release()
        return out[0]

    return step


class _Plan(NamedTuple):
    heads: int
    settings: Settings
    recording: bool  # Whether a backward pass may follow
    routine: int  # Address of the multiplication routine
    mlp: list[Tensor]  # The weights that `Leaves.mlp` stacks


def _pack(tensors: Leaves, leaves: Leaves, mlp: list[Tensor], turn: bool = False) -> Leaves:
    """Pack the weights for the routine with bfloat16 factors; with `turn`, for the gradient."""
    qkv, layers, gates = (routes.packed(*part, turn=turn) for part in ([tensors.qkv], mlp, [tensors.gates]))
    return leaves._replace(qkv=qkv, mlp=layers.reshape(len(mlp), -1, layers.shape[-1]), gates=gates)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        leaves, memory = Leaves(*routes.arrays(*tensors)), Leaves(*tensors).memory
        steps, batch = plan.settings.reset.shape
        record = make_record(leaves, plan.heads, steps if plan.recording else 1, batch)
        out = memory.new_empty(steps, *memory.shape)
        values, many = out.numpy(), steps > 1  # for a single step, transposing matrices does not pay
        width = routes.GROUP if many else routes.GROUP_OF_A_STEP
        if plan.routine < 0:
            leaves = _pack(Leaves(*tensors), leaves, plan.mlp)
        elif many:
            matrices = {name: routes.turned(getattr(leaves, name)) for name in ("qkv", "mlp", "gates")}
            leaves = leaves._replace(**matrices)
        settings = plan.settings._replace(turned=many)

        def work(_: int, first: int, last: int) -> None:
            forward(plan.routine, first, last, settings, leaves, record, values)

        routes.by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(*tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        leaves, batch = Leaves(*routes.arrays(*ctx.saved_tensors)), len(grad_last)
        grads = make_gradients(leaves, record, grad_last, routes.groups(batch, routes.GROUP))
        (above,) = routes.arrays(grad_out)
        if plan.routine < 0:
            leaves = _pack(Leaves(*ctx.saved_tensors), leaves, plan.mlp, turn=True)

        def work(group: int, first: int, last: int) -> None:
            sums = grads._replace(**{name: getattr(grads, name)[group] for name in VECTORS})
            backward(plan.routine, first, last, plan.settings, leaves, record, above, sums)

        routes.by_groups(work, batch, routes.GROUP)
        return None, *_collect(grads, record, plan.routine < 0)


def _collect(grads: Leaves, record: Record, rounded: bool) -> Leaves:
    pairs = [(grads.qkv, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
    if record.gates.size:
        pairs.append((grads.gates, record.squashed))
    qkv, *rest = routes.matrix_gradients(pairs, rounded)
    matrices = {"qkv": qkv, "mlp": torch.stack(rest[: len(grads.mlp)])}
    matrices["gates"] = rest[-1] if record.gates.size else qkv.new_empty(0, qkv.shape[1])
    others = {name: getattr(grads, name) for name in ("row", "gates_input", "memory")}
    others |= {name: getattr(grads, name).sum(0) for name in VECTORS}
    return Leaves(**matrices, **{name: torch.from_numpy(array) for name, array in others.items()})
