"""Compiled unrolls of LSTM, ConvLSTM and GRU and their gradients, as one node of the autograd graph, for a CPU.

The equations are in `lstm.py`. A convolution is one matrix multiplication: every position's neighborhood is one
contiguous row of `seen`. Without an image, there is one position, its own neighborhood.

Shapes: T steps, B environments, P positions of the image (1 without an image), K elements of a kernel (likewise), C
units per position, G gates per unit (LSTM 4, GRU 3).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....base.compiled import compiled
from . import routes
from .blas import gemm, multiply, release
from .elementwise import Array, add, copy, copy_rows, gradient_ends, part, sigmoid, tanh

ONE_PLACE = np.zeros((1, 1), np.int64)  # `Inputs.places` without an image
PLACES_AT_ONCE = 400  # Rows per matrix multiplication: fewer need too many calls, more do not fit in a core's cache


class Inputs(NamedTuple):
    """Inputs of the loop and the state before it."""

    gates: Array  # [T, B, P, G C]: the inputs' contribution to the gates, biases included
    bias: Array  # [C]: GRU's b_hn, which the reset gate scales; empty for the LSTM
    places: Array  # int [P, K]: position under each kernel element at each position; -1 is zero padding.
    reset: Array  # bool [T, B]
    h: Array  # [B, P, C]
    c: Array  # [B, P, C]: the LSTM's cells; [B, P, 0] for the GRU
    weight: Array  # W_h [G C, K C]; if `turned`, [K C, G C]
    turned: bool
    cut: int  # Gradients are truncated before every `cut`-th step; 0: none are


class Record(NamedTuple):
    """Activations saved by the forward pass for the backward pass; a record of one step is reused."""

    seen: Array  # [T, B P, K C]: the neighborhoods of h before each step, after resets; without an image, h itself
    c: Array  # [T, B P, C]: the LSTM's cells before each step, after resets; [T, B P, 0] for the GRU
    gates: Array  # [T, B P, G C]: i, f, g, o, or r, z, n
    inner: Array  # [T, B P, C]: tanh of the LSTM's cells after each step; GRU's h_n = W_hn h + b_hn


class Gradients(NamedTuple):
    """Gradients that the backward pass writes."""

    gates: Array  # [T, B P, G C]: of the gates before their nonlinearities
    products: Array  # [T, B P, G C]: of W_h h; for the LSTM, the same array
    seen: Array  # [B P, K C]: of the neighborhoods of one step
    h: Array
    c: Array  # [B P, C]: of the last state, overwritten with those of the first


@compiled("reassoc", "nsz")
def lstm(gemm: int, first: int, last: int, inputs: Inputs, record: Record, out: Array, cells: Array) -> None:
    """Compute all steps of environments `first` to `last` - 1; write h [T, B, P, C] to `out`, the last c to `cells`."""
    size = len(inputs.places)
    group = slice(first * size, last * size)
    for b in range(first, last):
        copy_rows(inputs.c[b], cells[b])
    for t in range(len(out)):
        s = t % len(record.c)
        seen, c, gates, inner = record.seen[s], record.c[s], record.gates[s], record.inner[s]
        for b in range(first, last):
            rows = slice(b * size, (b + 1) * size)
            if inputs.reset[t, b]:
                seen[rows] = 0
                c[rows] = 0
            else:
                _look(out[t - 1, b] if t > 0 else inputs.h[b], inputs.places, seen[rows])
                copy_rows(cells[b], c[rows])
        multiply(gemm, seen[group], inputs.weight, not inputs.turned, gates[group])
        for b in range(first, last):
            for p in range(size):
                row = b * size + p
                add(gates[row], inputs.gates[t, b, p])
                cell(gates[row], c[row], inner[row], cells[b, p], out[t, b, p])


@compiled("reassoc", "nsz")
def lstm_backward(
    gemm: int, first: int, last: int, inputs: Inputs, record: Record, grad_out: Array, grads: Gradients
) -> None:
    """The adjoint of `lstm` for gradients of h [T, B, P, C] and of the last h and c [B P, C]; never `turned`."""
    size = len(inputs.places)
    rows = slice(first * size, last * size)
    for t in range(len(grad_out) - 1, -1, -1):
        gates, c, inner, to_gates = record.gates[t], record.c[t], record.inner[t], grads.gates[t]
        for b in range(first, last):
            for p in range(size):
                row = b * size + p
                add(grads.h[row], grad_out[t, b, p])
                cell_backward(gates[row], c[row], inner[row], grads.h[row], to_gates[row], grads.c[row])
        multiply(gemm, to_gates[rows], inputs.weight, False, grads.seen[rows])
        for b in range(first, last):
            span = slice(b * size, (b + 1) * size)
            if gradient_ends(inputs.reset, inputs.cut, t, b):
                grads.h[span] = 0
                grads.c[span] = 0
            else:
                _look_backward(grads.seen[span], inputs.places, grads.h[span])


@part
def cell(gates: Array, c: Array, squashed: Array, new_c: Array, new_h: Array) -> None:
    """c' = sigmoid(f) * c + sigmoid(i) * tanh(g),  h' = sigmoid(o) * tanh(c'); the nonlinearities of i, f, g, o, gates
    [4 H], are applied in place, and `squashed` [H] becomes tanh(c')."""
    size = len(c)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    sigmoid(gates[: 2 * size])
    tanh(g, g)
    sigmoid(o)
    for k in range(size):
        new_c[k] = f[k] * c[k] + i[k] * g[k]
    tanh(new_c, squashed)
    for k in range(size):
        new_h[k] = o[k] * squashed[k]


@part
def cell_backward(gates: Array, c: Array, squashed: Array, to_h: Array, to_gates: Array, to_c: Array) -> None:
    """Gradients of h' and c' [H] -> those of i, f, g, o [4 H] before their nonlinearities, and of c in `to_c`."""
    size = len(c)
    one = to_h.dtype.type(1)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    to_i, to_f = to_gates[:size], to_gates[size : 2 * size]
    to_g, to_o = to_gates[2 * size : 3 * size], to_gates[3 * size :]
    for k in range(size):
        from_c = to_c[k] + to_h[k] * o[k] * (one - squashed[k] * squashed[k])
        to_i[k] = from_c * g[k] * i[k] * (one - i[k])
        to_f[k] = from_c * c[k] * f[k] * (one - f[k])
        to_g[k] = from_c * i[k] * (one - g[k] * g[k])
        to_o[k] = to_h[k] * squashed[k] * o[k] * (one - o[k])
        to_c[k] = from_c * f[k]


@part
def _look(h: Array, places: Array, out: Array) -> None:
    """Write the neighborhood of every position of one image: h [P, C] -> `out` [P, K C]."""
    channels = h.shape[1]
    for p in range(len(places)):
        for k in range(places.shape[1]):
            place, into = places[p, k], out[p, k * channels : (k + 1) * channels]
            if place < 0:
                into[:] = 0
            else:
                copy(h[place], into)


@part
def _look_backward(grad_seen: Array, places: Array, grad_h: Array) -> None:
    """The adjoint of `_look`: [P, K C] -> `grad_h` [P, C], which is overwritten."""
    channels = grad_h.shape[1]
    grad_h[:] = 0
    for p in range(len(places)):
        for k in range(places.shape[1]):
            if places[p, k] >= 0:
                add(grad_h[places[p, k]], grad_seen[p, k * channels : (k + 1) * channels])


@compiled("reassoc", "nsz")
def gru(gemm: int, first: int, last: int, inputs: Inputs, record: Record, out: Array, cells: Array) -> None:
    """As `lstm`, for h [T, B, 1, C]; there are no cells."""
    size = out.shape[3]
    one = out.dtype.type(1)
    for t in range(len(out)):
        s = t % len(record.seen)
        h, gates, inner = record.seen[s], record.gates[s], record.inner[s]
        for b in range(first, last):
            if inputs.reset[t, b]:
                h[b, :] = 0
            else:
                copy(out[t - 1, b, 0] if t > 0 else inputs.h[b, 0], h[b])
        multiply(gemm, h[first:last], inputs.weight, not inputs.turned, gates[first:last])
        for b in range(first, last):
            both, from_input = gates[b, : 2 * size], inputs.gates[t, b, 0]
            # r, z = sigmoid(x + h)
            add(both, from_input[: 2 * size])
            sigmoid(both)
            r, z, n = both[:size], both[size:], gates[b, 2 * size :]
            x_n, h_n, old, new = from_input[2 * size :], inner[b], h[b], out[t, b, 0]
            # n = tanh(x_n + r * h_n)
            for k in range(size):
                h_n[k] = n[k] + inputs.bias[k]
                n[k] = x_n[k] + r[k] * h_n[k]
            tanh(n, n)
            # h' = (1 - z) * n + z * h
            for k in range(size):
                new[k] = (one - z[k]) * n[k] + z[k] * old[k]


@compiled("reassoc", "nsz")
def gru_backward(
    gemm: int, first: int, last: int, inputs: Inputs, record: Record, grad_out: Array, grads: Gradients
) -> None:
    """The adjoint of `gru`, as `lstm_backward`."""
    size = grad_out.shape[3]
    one = grad_out.dtype.type(1)
    through = grads.seen  # [B, C]: the gradient that reaches the previous h directly, through z
    for t in range(len(grad_out) - 1, -1, -1):
        for b in range(first, last):
            gates, h_n, old = record.gates[t, b], record.inner[t, b], record.seen[t, b]
            r, z, n = gates[:size], gates[size : 2 * size], gates[2 * size :]
            to_gates, to_products = grads.gates[t, b], grads.products[t, b]
            to_h, past, above = grads.h[b], through[b], grad_out[t, b, 0]
            for k in range(size):
                from_h = to_h[k] + above[k]
                from_n = from_h * (one - z[k]) * (one - n[k] * n[k])
                from_r = from_n * h_n[k] * r[k] * (one - r[k])
                from_z = from_h * (old[k] - n[k]) * z[k] * (one - z[k])
                past[k] = from_h * z[k]
                to_gates[k] = from_r
                to_gates[size + k] = from_z
                to_gates[2 * size + k] = from_n
                to_products[k] = from_r
                to_products[size + k] = from_z
                to_products[2 * size + k] = from_n * r[k]
        multiply(gemm, grads.products[t, first:last], inputs.weight, False, grads.h[first:last])
        for b in range(first, last):
            if gradient_ends(inputs.reset, inputs.cut, t, b):
                grads.h[b, :] = 0
            else:
                add(grads.h[b], through[b])


def run(
    gates: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    reset: Tensor,
    bptt_length: int | None,
    bias: Tensor | None = None,
    places: Array | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h [T, B, H] after each step, the last h and the last c; reset and bptt_length are those of `Core.unroll`.

    Args:
        gates: W_x x with all biases except `bias`, [T, B, G H]; for a ConvLSTM, [T, B, P, 4 C], and h is [T, B, P, C].
        weight: W_h, [G H, H]; for a ConvLSTM, [4 C, K C], with the channels of each kernel element contiguous.
        h, c: before the first step, [B, H]; for a ConvLSTM, [B, P, C]; for a GRU, c is [B, 0].
        bias: for a GRU, b_hn [H].
        places: for a ConvLSTM, `Inputs.places`.
    """
    (steps, batch, *image, _), size = gates.shape, weight.shape[0] // (4 if bias is None else 3)
    shapes = (batch, *image, size), (batch, *image, size if bias is None else 0)
    name, loops = ("LSTM", (lstm, lstm_backward)) if bias is None else ("GRU", (gru, gru_backward))
    routes.check(name, gates, h=(h, shapes[0]), c=(c, shapes[1]), reset=(reset, (steps, batch)))
    address = routes.routine(weight.dtype, weight) if places is None else gemm(weight.dtype)
    places, bias = ONE_PLACE if places is None else places, weight.new_empty(0) if bias is None else bias
    (resets,) = routes.arrays(reset)
    width = routes.group_size(batch) if len(places) == 1 else max(1, PLACES_AT_ONCE // len(places))
    plan = _Plan(*loops, address, torch.is_grad_enabled(), width, places, resets, bptt_length or 0)
    return _Unroll.apply(plan, gates, weight, bias, h, c)  # pyright: ignore


def lstm_steps(weight: Tensor, batch: int) -> Callable[[Array, Array, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Prepare a step for acting with W_h [4 H, H]: step(gates [B, 4 H], reset bool [B], h, c) returns the next h, c."""
    address, size, (bias,) = routes.routine(weight.dtype, weight), weight.shape[1], routes.arrays(weight.new_empty(0))
    record = Record(*(np.empty((1, batch, width), bias.dtype) for width in (size, size, 4 * size, size)))
    matrix, width = routes.factor(address, weight), min(batch, routes.GROUP_OF_A_STEP)

    def step(gates: Array, reset: Array, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        out, cells = h.new_empty(1, *h.shape), c.new_empty(c.shape)
        h_before, c_before = (leaf[:, np.newaxis] for leaf in routes.arrays(h, c))
        now, resets = gates[np.newaxis, :, np.newaxis], reset[np.newaxis]
        inputs = Inputs(now, bias, ONE_PLACE, resets, h_before, c_before, matrix, False, 0)
        results = out.numpy()[:, :, np.newaxis], cells.numpy()[:, np.newaxis]
        for first in range(0, batch, width):
            lstm(address, first, min(first + width, batch), inputs, record, *results)
        release()
        return out[0], cells

    return step


class _Plan(NamedTuple):
    forward: Callable[..., None]
    backward: Callable[..., None]
    routine: int  # Address of the multiplication routine
    recording: bool  # Whether a backward pass may follow
    width: int  # Environments per group
    places: Array
    reset: Array
    cut: int


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (steps, batch), (image, kernel), size = plan.reset.shape, plan.places.shape, h.shape[-1]
        turned = steps > 1 and image == 1  # A transposed matrix is faster for few rows, except for a single step.
        x, offset, *state = routes.arrays(gates, bias, h, c)
        x = x.reshape(steps, batch, image, -1)
        old_h, old_c = (leaf.reshape(batch, image, leaf.shape[-1]) for leaf in state)
        matrix = routes.factor(plan.routine, weight, turned)
        inputs = Inputs(x, offset, plan.places, plan.reset, old_h, old_c, matrix, turned, plan.cut)
        widths = kernel * size, c.shape[-1], x.shape[3], size
        shape = steps if plan.recording else 1, batch * image
        record = Record(*(np.empty((*shape, width), x.dtype) for width in widths))
        width = plan.width if turned or image > 1 else routes.GROUP_OF_A_STEP
        out, cells = h.new_empty(steps, *h.shape), c.new_empty(c.shape)
        results = out.numpy().reshape(steps, *inputs.h.shape), cells.numpy().reshape(inputs.c.shape)
        routes.by_groups(lambda _, *rows: plan.forward(plan.routine, *rows, inputs, record, *results), batch, width)
        if plan.recording:
            ctx.plan, ctx.inputs, ctx.record, ctx.shape = plan, inputs, record, gates.shape
            ctx.save_for_backward(weight)
        return out, out[-1].clone(), cells

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        routes.refuse_second_derivative()
        plan, record, inputs, (weight,) = ctx.plan, ctx.record, ctx.inputs, ctx.saved_tensors
        inputs = inputs._replace(weight=routes.factor(plan.routine, weight, adjoint=True))
        cells, rows, (steps, batch) = inputs.c.shape[2], record.seen.shape[1], plan.reset.shape
        above = routes.arrays(grad_out)[0].reshape(steps, *inputs.h.shape)
        h, c = (array.copy().reshape(rows, array.shape[-1]) for array in routes.arrays(*grad_last))
        to_gates = np.empty_like(record.gates)
        products = to_gates if cells else np.empty_like(to_gates)
        grads = Gradients(to_gates, products, np.empty_like(record.seen[0]), h, c)
        rest = inputs, record, above, grads
        routes.by_groups(lambda _, *rows: plan.backward(plan.routine, *rows, *rest), batch, plan.width)
        (grad_weight,) = routes.matrix_gradients([(products, record.seen)], plan.routine < 0)
        size = 0 if cells else h.shape[1]
        grad_bias = torch.from_numpy(products[..., products.shape[2] - size :]).sum((0, 1))
        states = (torch.from_numpy(leaf).view_as(grad) for leaf, grad in zip((h, c), grad_last, strict=True))
        return None, torch.from_numpy(to_gates).view(ctx.shape), grad_weight, grad_bias, *states
