"""The unroll of LSTM, ConvLSTM and GRU by compiled functions, as one node of the autograd graph, for a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .... import bf16
from .. import routes
from ..blas import gemm
from ..elementwise import Array
from .kernels import ONE_PLACE, Gradients, Inputs, Record, gru, gru_backward, lstm, lstm_backward, make_record

PLACES_AT_ONCE = 400  # Rows per matrix multiplication: fewer need too many calls, more do not fit in a core's cache


def run_lstm(
    gates: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    reset: Tensor,
    bptt_length: int | None,
    places: Array | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h [T, B, H] after each step, the last h and the last c; for a ConvLSTM, h is [T, B, P, C].

    Args:
        gates: W_x x + b_x + b_h, [T, B, 4 H]; for a ConvLSTM, [T, B, P, 4 C].
        weight: W_h, [4 H, H]; for a ConvLSTM, [4 C, K C], with the channels of each kernel element contiguous.
        h, c: before the first step, [B, H]; for a ConvLSTM, [B, P, C].
        reset, bptt_length: as in `Core.unroll`.
        places: for a ConvLSTM, int [P, K]: position under each kernel element at each position; -1 is padding.
    """
    (steps, batch, *image, _), size = gates.shape, weight.shape[0] // 4
    state = (batch, *image, size)
    routes.check("LSTM", gates, h=(h, state), c=(c, state), reset=(reset, (steps, batch)))
    address = routes.routine(weight.dtype, weight) if places is None else gemm(weight.dtype)
    places = ONE_PLACE if places is None else places
    (resets,) = routes.arrays(reset)
    plan = _Plan(lstm, lstm_backward, places, resets, bptt_length or 0, torch.is_grad_enabled(), address)
    return _Unroll.apply(plan, gates, weight, weight.new_empty(0), h, c)  # pyright: ignore


def run_gru(
    gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor, reset: Tensor, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """Return h [T, B, H] after each step, and the last h.

    Args:
        gates: W_x x + b_x [T, B, 3 H], with the biases of h_r and h_z.
        weight: W_h, [3 H, H].
        bias: the bias of h_n, [H].
        h: before the first step, [B, H].
        reset, bptt_length: as in `Core.unroll`.
    """
    steps, batch, _ = gates.shape
    routes.check("GRU", gates, h=(h, (batch, weight.shape[1])), reset=(reset, (steps, batch)))
    address = routes.routine(weight.dtype, weight)
    (resets,) = routes.arrays(reset)
    plan = _Plan(gru, gru_backward, ONE_PLACE, resets, bptt_length or 0, torch.is_grad_enabled(), address)
    outputs, last, _ = _Unroll.apply(plan, gates, weight, bias, h, h.new_empty(len(h), 0))  # pyright: ignore
    return outputs, last


def lstm_steps(weight: Tensor, batch: int) -> Callable[[Array, Array, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Prepare a step for acting with W_h [4 H, H]: step(gates [B, 4 H], reset bool [B], h, c) returns the next h, c."""
    address, width = routes.routine(weight.dtype, weight), min(batch, routes.GROUP_OF_A_STEP)
    matrix, bias = routes.packed(weight) if address < 0 else routes.arrays(weight)[0], weight.new_empty(0).numpy()
    record: list[Record] = []

    def step(gates: Array, reset: Array, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        out, cells = h.new_empty(1, *h.shape), c.new_empty(c.shape)
        h_before, c_before = (leaf[:, np.newaxis] for leaf in routes.arrays(h, c))
        now = gates[np.newaxis, :, np.newaxis]
        inputs = Inputs(now, bias, ONE_PLACE, reset[np.newaxis], h_before, c_before, matrix, False, 0)
        record.extend([make_record(1, batch, inputs)] if not record else [])
        results = out.numpy()[:, :, np.newaxis], cells.numpy()[:, np.newaxis]
        for first in range(0, batch, width):
            lstm(address, first, min(first + width, batch), inputs, record[0], *results)
        bf16.release()
        return out[0], cells

    return step


class _Plan(NamedTuple):
    forward: Callable[..., None]
    backward: Callable[..., None]
    places: Array
    reset: Array
    cut: int
    recording: bool  # Whether a backward pass may follow
    routine: int  # Address of the multiplication routine

    def group(self) -> int:
        """Return the number of environments per group."""
        places = len(self.places)
        return routes.group_size(self.reset.shape[1]) if places == 1 else max(1, PLACES_AT_ONCE // places)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, weight, bias, *state = routes.arrays(*tensors)
        (steps, batch), image = plan.reset.shape, len(plan.places)
        turns = steps > 1 and image == 1  # A transposed matrix is faster for few rows, except for a single step.
        if plan.routine < 0:
            weight = routes.packed(tensors[1])
        elif turns:
            weight = routes.turned(weight)
        h, c = (leaf.reshape(batch, image, leaf.shape[-1]) for leaf in state)
        gates = gates.reshape(steps, batch, image, -1)
        inputs = Inputs(gates, bias, plan.places, plan.reset, h, c, weight, turns, plan.cut)
        record = make_record(steps if plan.recording else 1, batch, inputs)
        out, cells = tensors[3].new_empty(steps, *tensors[3].shape), tensors[4].new_empty(tensors[4].shape)
        results = out.numpy().reshape(steps, *h.shape), cells.numpy().reshape(c.shape)
        width = plan.group() if turns or image > 1 else routes.GROUP_OF_A_STEP

        def work(_: int, first: int, last: int) -> None:
            plan.forward(plan.routine, first, last, inputs, record, *results)

        routes.by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.inputs, ctx.record, ctx.shape = plan, inputs, record, tensors[0].shape
            ctx.save_for_backward(tensors[1])
        return out, out[-1].clone(), cells

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        (weight,) = ctx.saved_tensors
        weight = routes.packed(weight, turn=True) if plan.routine < 0 else routes.arrays(weight)[0]
        inputs = ctx.inputs._replace(weight=weight)
        cells, rows, (steps, batch) = inputs.c.shape[2], record.seen.shape[1], plan.reset.shape
        above = routes.arrays(grad_out)[0].reshape(steps, *inputs.h.shape)
        h, c = (array.copy().reshape(rows, array.shape[-1]) for array in routes.arrays(*grad_last))
        to_gates = np.empty_like(record.gates)
        products = to_gates if cells else np.empty_like(to_gates)
        grads = Gradients(to_gates, products, np.empty_like(record.seen[0]), h, c)

        def work(_: int, first: int, last: int) -> None:
            plan.backward(plan.routine, first, last, inputs, record, above, grads)

        routes.by_groups(work, batch, plan.group())
        (grad_weight,) = routes.matrix_gradients([(products, record.seen)], plan.routine < 0)
        size = 0 if cells else h.shape[1]
        grad_bias = torch.from_numpy(products[..., products.shape[2] - size :]).sum((0, 1))
        states = (torch.from_numpy(leaf).view_as(grad) for leaf, grad in zip((h, c), grad_last, strict=True))
        return None, torch.from_numpy(to_gates).view(ctx.shape), grad_weight, grad_bias, *states
