"""The relational memory core's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import routes
from ..blas import release
from ..elementwise import Array
from .kernels import VECTORS, Leaves, Record, Settings, backward, forward

MATRICES = ("qkv", "mlp", "gates")


def run(
    leaves: Leaves, initial: Tensor, heads: int, reset: Tensor | None, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """Return the memories [T, B, N, F] after each step, and the last memory, with the memory `initial` [N, F] at the
    start of an episode; reset and bptt_length are those of `Core.unroll`, but `reset` may be None."""
    row: Tensor = leaves.row
    steps = row.shape[:2]
    reset = torch.zeros(steps, dtype=torch.bool) if reset is None else reset
    routes.check("RMC", row, memory=(leaves.memory, (steps[1], *initial.shape)), reset=(reset, steps))
    address, (resets, first) = routes.routine(row.dtype, leaves.qkv), routes.arrays(reset, initial)
    # For a single step, transposing matrices does not pay.
    settings = Settings(resets, first, len(row) > 1, bptt_length or 0)
    return _Unroll.apply(heads, settings, torch.is_grad_enabled(), address, *leaves)  # pyright: ignore


def prepare(tensors: Leaves, initial: Tensor, heads: int) -> Callable[[Array, Array, Tensor, Array], Tensor]:
    """Prepare a step for acting: step(row, gates_input, memory, reset bool [B]) returns the next memory [B, N, F].
    The first two arguments are those of `Leaves`, with T = 1. Arguments as in `run`."""
    address, (first,) = routes.routine(tensors.row.dtype, tensors.qkv), routes.arrays(initial)
    leaves = routes.arranged(tensors, MATRICES, address)
    batch = len(tensors.memory)
    record, width = make_record(leaves, heads, 1, batch), min(batch, routes.GROUP_OF_A_STEP)

    def step(row: Array, gates: Array, memory: Tensor, reset: Array) -> Tensor:
        out, settings = memory.new_empty(1, *memory.shape), Settings(reset[np.newaxis], first, False, 0)
        (before,), values = routes.arrays(memory), out.numpy()
        now = leaves._replace(row=row, gates_input=gates, memory=before)
        for begin in range(0, batch, width):
            forward(address, begin, min(begin + width, batch), settings, now, record, values)
        release()
        return out[0]

    return step


def make_record(leaves: Leaves, heads: int, steps: int, batch: int) -> Record:
    slots, width = leaves.memory.shape[1:]
    layers, gates, size = len(leaves.mlp), len(leaves.gates_bias), len(leaves.qkv_bias)
    gated = (slots, width if gates else 0)

    def room(*sizes: int) -> Array:
        return np.empty((steps, batch, *sizes), leaves.memory.dtype)

    return Record(
        rows=room(slots + 1, width),
        projected=room(slots + 1, size),
        projected_rstd=room(slots + 1),
        attention=room(heads, slots, slots + 1),
        attended=room(slots, width),
        attended_rstd=room(slots),
        hidden=np.empty((layers + 1, steps, batch, slots, width), leaves.memory.dtype),
        hidden_rstd=room(slots),
        candidate=room(*gated),
        squashed=room(*gated),
        gates=room(slots, gates),
    )


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: int, settings: Settings, recording: bool, address: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        leaves = routes.arranged(Leaves(*tensors), MATRICES, address, settings.turned)
        steps, batch = settings.reset.shape
        record = make_record(leaves, heads, steps if recording else 1, batch)
        width = routes.GROUP if settings.turned else routes.GROUP_OF_A_STEP
        memory = Leaves(*tensors).memory
        out = memory.new_empty(steps, *memory.shape)
        rest = settings, leaves, record, out.numpy()
        routes.by_groups(lambda _, first, last: forward(address, first, last, *rest), batch, width)
        if recording:
            ctx.settings, ctx.address, ctx.record = settings, address, record
            ctx.save_for_backward(*tensors)
        return out, out[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        settings, address, record, batch = ctx.settings, ctx.address, ctx.record, len(grad_last)
        leaves = routes.arranged(Leaves(*ctx.saved_tensors), MATRICES, address, adjoint=True)
        # Of matrices, the gradients of their results; of vectors, one sum per group; of the memory, that of the last.
        like = {"qkv": record.projected, "mlp": record.hidden[1:], "gates": record.gates}
        like |= {name: getattr(leaves, name) for name in ("row", "gates_input")}
        new = {name: np.empty_like(array) for name, array in like.items()}
        groups = routes.groups(batch, routes.GROUP)
        new |= {name: np.zeros((groups, *getattr(leaves, name).shape), record.rows.dtype) for name in VECTORS}
        above, last_memory = routes.arrays(grad_out, grad_last)
        grads = Leaves(memory=last_memory.copy(), **new)

        def work(group: int, first: int, last: int) -> None:
            sums = grads._replace(**{name: getattr(grads, name)[group] for name in VECTORS})
            backward(address, first, last, settings, leaves, record, above, sums)

        routes.by_groups(work, batch, routes.GROUP)
        pairs = [(grads.qkv, record.rows), *zip(grads.mlp, record.hidden[:-1], strict=True)]
        if record.gates.size:
            pairs.append((grads.gates, record.squashed))
        qkv, *rest = routes.matrix_gradients(pairs, address < 0)
        matrices = {"qkv": qkv, "mlp": torch.stack(rest[: len(grads.mlp)])}
        matrices["gates"] = rest[-1] if record.gates.size else qkv.new_empty(0, qkv.shape[1])
        others = {name: getattr(grads, name) for name in ("row", "gates_input", "memory")}
        others |= {name: getattr(grads, name).sum(0) for name in VECTORS}
        others = {name: torch.from_numpy(array) for name, array in others.items()}
        return None, None, None, None, *Leaves(**matrices, **others)
