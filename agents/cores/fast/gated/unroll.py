"""The unroll of LSTM and GRU by compiled functions, as one node of autograd's graph, for a CPU."""

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
    matrix_gradients,
    packed,
    refuse_second_derivative,
    routine,
    turned,
)
from . import gru, lstm
from .arrays import Gradients, Inputs, Record


def run_lstm(
    gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, reset: Tensor, bptt_length: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h [T, B, H] after each step, the last h and the last c.

    Args:
        gates: W_x x + b_x + b_h, [T, B, 4 H].
        weight: W_h, [4 H, H].
        h, c: before the first step, [B, H].
        reset, bptt_length: as in `Core.unroll`.
    """
    (steps, batch, _), size = gates.shape, weight.shape[1]
    check("LSTM", gates, h=(h, (batch, size)), c=(c, (batch, size)), reset=(reset, (steps, batch)))
    return _Unroll.apply(_plan(LSTM_LOOPS, weight, reset, bptt_length), gates, weight, weight.new_empty(0), h, c)  # pyright: ignore


def run_gru(
    gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor, reset: Tensor, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """h [T, B, H] after each step, and the last h.

    Args:
        gates: W_x x + b_x [T, B, 3 H], with the biases of h_r and h_z.
        weight: W_h, [3 H, H].
        bias: that of h_n, [H].
        h: before the first step, [B, H].
        reset, bptt_length: as in `Core.unroll`.
    """
    steps, batch, _ = gates.shape
    check("GRU", gates, h=(h, (batch, weight.shape[1])), reset=(reset, (steps, batch)))
    outputs, last, _ = _Unroll.apply(
        _plan(GRU_LOOPS, weight, reset, bptt_length),  # pyright: ignore
        gates,
        weight,
        bias,
        h,
        h.new_empty(len(h), 0),
    )
    return outputs, last


def lstm_steps(weight: Tensor, batch: int) -> Callable[[Array, Array, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Prepare steps for acting with W_h [4 H, H]: step(gates [B, 4 H], reset bool [B], h, c) returns the next h, c."""
    address, width = routine(weight.dtype, weight), min(batch, GROUP_OF_A_STEP)
    matrix, bias = packed(weight) if address < 0 else arrays(weight)[0], weight.new_empty(0).numpy()
    record: list[Record] = []

    def step(gates: Array, reset: Array, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        out, cells = h.new_empty(1, *h.shape), torch.empty_like(c)
        inputs = Inputs(gates[np.newaxis], bias, reset[np.newaxis], *arrays(h, c))
        record.extend([_record(1, width, inputs)] if not record else [])
        results = out.numpy(), cells.numpy()
        for first in range(0, batch, width):
            last = min(first + width, batch)
            lstm.forward(address, first, last, inputs, matrix, False, record[0], *results)
        bf16.release()
        return out[0], cells

    return step


class _Loops(NamedTuple):
    forward: Callable[..., None]
    backward: Callable[..., None]
    cells: bool
    """Whether the state has cells in addition to h."""


LSTM_LOOPS = _Loops(lstm.forward, lstm.backward, cells=True)
GRU_LOOPS = _Loops(gru.forward, gru.backward, cells=False)


class _Plan(NamedTuple):
    loops: _Loops
    reset: Array
    cut: int
    recording: bool
    routine: int
    """Address of the multiplication routine."""


def _plan(loops: _Loops, weight: Tensor, reset: Tensor, bptt_length: int | None) -> _Plan:
    (resets,) = arrays(reset)
    return _Plan(loops, resets, bptt_length or 0, torch.is_grad_enabled(), routine(weight.dtype, weight))


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, weight, bias, h, c = arrays(*tensors)
        steps, batch = plan.reset.shape
        inputs = Inputs(gates, bias, plan.reset, h, c)
        record = _record(steps, batch, inputs) if plan.recording else None
        out, cells = tensors[3].new_empty(steps, *h.shape), tensors[4].new_empty(c.shape)
        address, results = plan.routine, (out.numpy(), cells.numpy())
        # A transposed matrix is faster for few environments, but transposing does not pay for a single step.
        many = steps > 1
        width, weight = (group_size(batch), turned(weight)) if many else (GROUP_OF_A_STEP, weight)
        if address < 0:
            weight = packed(tensors[1])

        def work(_: int, first: int, last: int) -> None:
            own = record or _record(1, min(width, batch), inputs)
            plan.loops.forward(address, first, last, inputs, weight, many, own, *results)

        by_groups(work, batch, width)
        if plan.recording:
            ctx.plan, ctx.record = plan, record
            ctx.save_for_backward(tensors[1])
        return out, out[-1].clone(), cells

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan, record = ctx.plan, ctx.record
        (weight,) = ctx.saved_tensors
        weight = packed(weight, turn=True) if plan.routine < 0 else weight.detach().contiguous().numpy()
        above = grad_out.contiguous().numpy()
        h, c = (grad.contiguous().numpy().copy() for grad in grad_last)
        to_gates = np.empty_like(record.gates)
        if plan.loops.cells:
            grads = Gradients(to_gates, to_gates, h, c)
        else:
            grads = Gradients(to_gates, np.empty_like(to_gates), h, np.empty_like(h))
        address = plan.routine

        def work(_: int, first: int, last: int) -> None:
            plan.loops.backward(address, first, last, plan.cut, plan.reset, weight, record, above, grads)

        by_groups(work, above.shape[1], group_size(above.shape[1]))
        (grad_weight,) = matrix_gradients([(grads.products, record.h)], address < 0)
        size = 0 if plan.loops.cells else h.shape[1]
        grad_bias = torch.from_numpy(grads.products[..., grads.products.shape[2] - size :]).sum((0, 1))
        grad_c = torch.from_numpy(c)
        return None, torch.from_numpy(to_gates), grad_weight, grad_bias, torch.from_numpy(h), grad_c


def _record(steps: int, batch: int, inputs: Inputs) -> Record:
    def room(width: int) -> Array:
        return np.empty((steps, batch, width), inputs.h.dtype)

    size = inputs.h.shape[1]
    return Record(room(size), room(inputs.c.shape[1]), room(inputs.gates.shape[2]), room(size))
