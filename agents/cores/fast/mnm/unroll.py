"""MNM's unroll by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import routes
from ..blas import release
from ..elementwise import Array
from .backward import backward
from .forward import Gradients, Inputs, Leaves, Record, Result, forward

MATRICES = ("recurrent", "heads", "targets")


def run(
    tensors: Leaves, reset: Tensor, initial: Tensor, scales: tuple[float, float], heads: int, bptt_length: int | None
) -> Result:
    """Run all T steps, with the memory `initial` [3, d, d] at the start of an episode; reset and bptt_length are those
    of `Core.unroll`, `scales` s of the write and the factor of the meta error."""
    (steps, batch, _), size = tensors.gates.shape, tensors.recurrent.shape[0] // 4
    shapes = {"h": (size,), "c": (size,), "read": initial.shape[1:2], "memory": initial.shape}
    states = {name: (getattr(tensors, name), (batch, *shape)) for name, shape in shapes.items()}
    routes.check("MNM", tensors.gates, **states, reset=(reset, (steps, batch)))
    resets, first = routes.arrays(reset, initial)
    recording = torch.is_grad_enabled()
    replaced = resets & recording
    replaced[0] = False  # no gradient reaches the memory that the first step replaces
    indices = np.where(replaced, replaced.cumsum().reshape(replaced.shape) - 1, -1)
    inputs = Inputs(resets, indices, first, np.asarray(scales, first.dtype), bptt_length or 0)
    address = routes.routine(tensors.gates.dtype, tensors.recurrent)
    return Result(*_Unroll.apply(inputs, heads, recording, address, *tensors))  # pyright: ignore


def prepare(
    tensors: Leaves, initial: Tensor, scales: tuple[float, float], heads: int
) -> Callable[[Array, Tensor, Tensor, Tensor, Array], tuple[Tensor, Tensor, Tensor]]:
    """Prepare a step for acting: step(gates [B, 4 S], h, c, read, reset bool [B]) returns [h ; v^r] [B, S + d], the
    next cells and meta errors [B], and overwrites `tensors.memory`. Arguments as in `run`, with T = 1."""
    batch, (first, memory) = len(tensors.h), routes.arrays(initial, tensors.memory)
    address = routes.routine(tensors.gates.dtype, tensors.recurrent)
    weights, scale = routes.arranged(tensors, MATRICES, address, turned=True), np.asarray(scales, first.dtype)
    record, none = make_record(1, batch, weights, heads, 0), np.full((1, batch), -1)
    width = min(batch, routes.GROUP_OF_A_STEP)

    def step(gates: Array, h: Tensor, c: Tensor, read: Tensor, reset: Array) -> tuple[Tensor, Tensor, Tensor]:
        states = dict(zip(("h", "c", "read"), routes.arrays(h, c, read), strict=True))
        now = weights._replace(gates=gates[np.newaxis], **states)
        inputs = Inputs(reset[np.newaxis], none, first, scale, 0)
        out, errors = h.new_empty(1, batch, h.shape[1] + read.shape[1]), h.new_empty(1, batch)
        cells = c.new_empty(c.shape)
        result = Result(out.numpy(), errors.numpy(), cells.numpy(), memory)
        for begin in range(0, batch, width):
            forward(address, begin, min(begin + width, batch), inputs, now, record, result)
        release()
        return out[0], cells, errors[0]

    return step


def make_record(steps: int, batch: int, w: Leaves, heads: int, replaced: int) -> Record:
    size, width, local, normalized = w.h.shape[1], w.read.shape[1], len(w.targets_bias) > 0, len(w.norm_gain) > 0

    def room(*sizes: int) -> Array:
        return np.empty((steps, batch, *sizes), w.h.dtype)

    return Record(
        joined=room(size + width),
        c=room(size),
        gates=room(4 * size),
        squashed=room(size),
        heads=room((3 * heads + 1) * width),
        normal=room((3 * heads + 1) * width if normalized else 0),
        spread=room(1),
        beta=room(1),
        keys=room(2 * heads, width),
        values=room(heads, width),
        targets=room(heads, 3 * width if local else 0),
        written=room(3, heads, width),
        errors=room(3, heads, width),
        back=room(2, 0 if local else heads, width),
        found=room(3, 2 * heads, width),
        memories=np.empty((replaced, *w.memory.shape[1:]), w.h.dtype),
    )


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Inputs, heads: int, recording: bool, address: int, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        tensors, (steps, batch) = Leaves(*leaves), inputs.reset.shape
        weights = routes.arranged(tensors, MATRICES, address, turned=True)
        record = make_record(steps if recording else 1, batch, weights, heads, inputs.kept.max() + 1)
        width = record.joined.shape[2]
        out, errors = tensors.c.new_empty(steps, batch, width), tensors.c.new_empty(steps, batch)
        outputs = out, errors, tensors.c.new_empty(tensors.c.shape), tensors.memory.clone()
        rest = inputs, weights, record, Result(*(output.numpy() for output in outputs))
        routes.by_groups(lambda _, first, last: forward(address, first, last, *rest), batch, routes.group_size(batch))
        if recording:
            ctx.inputs, ctx.address, ctx.record = inputs, address, record
            ctx.save_for_backward(*tensors, out, outputs[-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        inputs, address, record = ctx.inputs, ctx.address, ctx.record
        *leaves, out, last_memory = ctx.saved_tensors
        tensors, weights = Leaves(*leaves), routes.arranged(Leaves(*leaves), MATRICES, address, adjoint=True)
        (memory,), above = routes.arrays(last_memory.clone()), Result(*routes.arrays(*grad))
        group = routes.group_size(len(memory))
        sums = np.zeros((2, routes.groups(len(memory), group), len(weights.norm_gain)), record.normal.dtype)
        joined = np.zeros(record.joined.shape[1:], record.joined.dtype)
        gates, products, targets, rate = map(np.empty_like, (record.gates, record.heads, record.targets, record.beta))
        states = joined, above.c.copy(), above.memory.copy()
        grads = Gradients(gates, products, targets, sums[0], sums[1], rate, *states)

        def work(index: int, first: int, last: int) -> None:
            own = grads._replace(norm_gain=sums[0, index], norm_bias=sums[1, index])
            backward(address, first, last, inputs, weights, record, memory, above, own)

        routes.by_groups(work, len(memory), group)
        size = grads.c.shape[1]
        pairs = {
            "recurrent": (gates, record.joined),
            "heads": (products, np.ascontiguousarray(out.numpy()[..., :size])),
            "rate": (rate, record.heads[..., : len(tensors.rate)]),
        }
        if len(tensors.targets):
            pairs["targets"] = targets, record.values
        matrices = dict(zip(pairs, routes.matrix_gradients(list(pairs.values()), address < 0), strict=True))
        biases = {"heads_bias": products, "rate_bias": rate, "targets_bias": targets}
        others = {"gates": gates, "c": grads.c, "memory": grads.memory, "h": joined[:, :size], "read": joined[:, size:]}
        others |= {"norm_gain": sums[0].sum(0), "norm_bias": sums[1].sum(0)}
        leaves = Leaves(
            **{"targets": tensors.targets} | matrices | {"rate": matrices["rate"][0]},
            **{name: torch.from_numpy(grad).flatten(0, -2).sum(0) for name, grad in biases.items()},
            **{name: torch.from_numpy(grad) for name, grad in others.items()},
        )
        return None, None, None, None, *leaves
