"""Viewports of a core's pools at every step of an unroll, without forming the pools (for a CPU).

Pools are linear in the inputs, and so is a viewport up to its ReLU: V_n p^n, with p^n a filter of W x, is the same
filter of (V_n W) x (Stepleton et al. 2018, section 4.2). Viewports are several times narrower than pools, so an
unroll takes one matrix multiplication and the filters, which read and write every value once.

Shapes: T steps, B environments, D inputs, P features of a pool, k pools, V values of a viewport, C = k V channels
in k groups. Group m is read after filter m: it passes through filters 0..m of the chain, or only through filter m
if not `in_a_row`.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....base.compiled import compiled
from ...kernels import linear
from .elementwise import Array
from .routes import arrays


class Filters(NamedTuple):
    """k low-pass filters p^n_t = gain_n below_t + decay_n p^n_{t-1}; gain_1 is 1."""

    gains: Tensor  # [k]
    decays: Tensor  # [k]
    in_a_row: bool  # Whether each pool filters the previous one; otherwise all pools filter the input.
    power: Tensor  # [k, k]: remaining share of the initial pools after T steps


class Views(torch.autograd.Function):
    """relu(V_n p^n_t + b_n) for all n and t, and the last pools; gradients pass only through the first pool."""

    @staticmethod
    def forward(ctx: Any, filters: Filters, reset: Tensor, cut: Tensor, *tensors: Any) -> tuple[Tensor, Tensor]:
        """inputs [T, B, D], start [B, k, P], embedding W [P, D] or None if the inputs are embedded, viewports
        [k, P, V], bias [k, V] -> views [T, B, C], pools [B, k, P]. No gradient passes from t to t - 1 where `cut`
        (bool [T, B]) is set, which includes all resets."""
        inputs, start, embedding, viewports, bias = tensors
        start = torch.where(reset[0].reshape(-1, 1, 1), 0.0, start)
        wide = viewports.transpose(0, 1).flatten(1)  # [P, C]
        views = linear(inputs, (wide if embedding is None else embedding.t() @ wide).t())
        gains, decays, on_start, resets, offset, visible = arrays(
            filters.gains, filters.decays, start @ wide, reset, bias.flatten(), views
        )
        see(visible, on_start, resets, gains, decays, filters.in_a_row, offset)
        ctx.filters, ctx.reset, ctx.cut = filters, reset, cut
        ctx.save_for_backward(inputs, start, embedding, viewports, views)
        ctx.set_materialize_grads(False)
        pools = inputs.new_zeros(inputs.shape[1], len(gains), inputs.shape[2])
        x, last = arrays(inputs, pools)
        hold(x, resets, gains, decays, filters.in_a_row, last)
        pools = pools if embedding is None else pools @ embedding.t()
        return views, pools + torch.where(reset.any(0).reshape(-1, 1, 1), 0.0, filters.power @ start)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        inputs, start, embedding, viewports, views = ctx.saved_tensors
        filters, (count, _, width) = ctx.filters, viewports.shape
        above = torch.zeros_like(views) if grads[0] is None else grads[0]
        on_inputs, path = torch.empty_like(views), views.new_empty(*views.shape[:2], width)
        grad_bias = views.new_zeros(count, width)
        g, visible, reset, cut, gains, decays, out, first, offset = arrays(
            above, views, ctx.reset, ctx.cut, filters.gains, filters.decays, on_inputs, path, grad_bias.view(-1)
        )
        # Gradients of the initial views [B, k, C]; the parts that pass through the first pool: [T, B, V] and [B, V].
        on_start = torch.from_numpy(see_backward(g, visible, reset, gains, decays, filters.in_a_row, out, offset))
        path_start = torch.from_numpy(smooth_backward(g, visible, cut, decays, first))
        x, viewport = inputs.flatten(0, 1), viewports[0]
        gradient = x.t() @ on_inputs.flatten(0, 1)  # [D, C]
        gradient = gradient if embedding is None else embedding @ gradient
        gradient += start.flatten(0, 1).t() @ on_start.flatten(0, 1)
        grad_viewports = gradient.unflatten(1, (count, -1)).transpose(0, 1)
        matrix = viewport.t() if embedding is None else viewport.t() @ embedding
        grad_inputs, grad_start = linear(path, matrix.t()), torch.zeros_like(start)
        grad_embedding = None if embedding is None else viewport @ (path.flatten(0, 1).t() @ x)
        grad_start[:, 0] = path_start @ viewport.t()
        if grads[1] is not None:
            # The gradient of the last step's first pool [B, P] is decay^j times as large j steps earlier.
            last, decay, steps = grads[1][:, 0], float(filters.decays[0]), len(inputs)
            age = torch.arange(steps - 1, -1, -1, dtype=last.dtype).unsqueeze(1)
            cuts = ctx.cut.flip(0).cumsum(0).flip(0)  # at this step and later
            left = torch.where(cuts == ctx.cut, decay**age, 0.0).unsqueeze(2)
            grad_inputs = grad_inputs + left * (last if embedding is None else last @ embedding)
            if grad_embedding is not None:
                grad_embedding = grad_embedding + last.t() @ (left * inputs).sum(0)
            grad_start[:, 0] += torch.where(cuts[0].unsqueeze(1) == 0, decay**steps * last, 0.0)
        return None, None, None, grad_inputs, grad_start, grad_embedding, grad_viewports, grad_bias


_filters = compiled()


@_filters
def see(rows: Array, start: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, bias: Array) -> None:
    """Overwrite inputs with relu(group m of z^m_t + bias); z^n_t = gain_n z^{n-1}_t + decay_n z^n_{t-1}.

    rows [T, B, C] contains the inputs z^{-1}_t; start is z_{-1} [B, k, C]; where reset (bool [T, B]) is set, z_{t-1} is
    0; gains and decays [k], bias [C]."""
    steps, batch, channels = rows.shape
    group = channels // len(gains)
    zero = rows.dtype.type(0)  # a plain 0 would convert everything to float64
    for b in range(batch):
        z = start[b].copy()
        for t in range(steps):
            if reset[t, b]:
                z[:] = zero
            for n in range(len(gains)):
                # All loops over values begin at 0, since numba uses vector instructions only then.
                first = n * group
                end = channels if in_a_row else first + group
                y, state, gain, decay = rows[t, b, first:end], z[n, first:end], gains[n], decays[n]
                for c in range(len(y)):
                    value = gain * y[c] + decay * state[c]
                    state[c] = value
                    y[c] = value
            y = rows[t, b]
            for c in range(channels):
                value = y[c] + bias[c]
                y[c] = zero if value <= zero else value  # nan stays nan


@_filters
def see_backward(
    grad: Array, views: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, out: Array, bias: Array
) -> Array:
    """The adjoint of `see`: the same filters backward in time and down the chain. grad and views [T, B, C] -> gradients
    of the inputs in `out` [T, B, C], added to `bias` [C], and of start [B, k, C]."""
    steps, batch, channels = grad.shape
    group = channels // len(gains)
    zero = grad.dtype.type(0)
    start = np.zeros((batch, len(gains), channels), grad.dtype)
    for b in range(batch):
        w = start[b]  # contribution of step t + 1 to z_t
        for t in range(steps - 1, -1, -1):
            x, g, y = out[t, b], grad[t, b], views[t, b]
            for c in range(channels):
                value = g[c]
                value = zero if y[c] <= zero else value
                x[c] = value
                bias[c] += value
            for n in range(len(gains) - 1, -1, -1):
                first = n * group
                end = channels if in_a_row else first + group
                x, state, gain, decay = out[t, b, first:end], w[n, first:end], gains[n], decays[n]
                for c in range(len(x)):
                    value = x[c] + state[c]
                    state[c] = decay * value
                    x[c] = gain * value
            if reset[t, b]:
                w[:] = zero
    return start


@_filters
def smooth_backward(grad: Array, views: Array, cut: Array, decays: Array, out: Array) -> Array:
    """The adjoint of y_t = relu(z_t + bias), z_t = x_t + decay z_{t-1}; at a cut (bool [T, B]) z_{t-1} is constant.
    Only the first V channels of grad and views [T, B, C] and the first decay are used. Results: dx in `out`
    [T, B, V], dz_{-1} [B, V]."""
    steps, batch, group = out.shape
    zero = grad.dtype.type(0)
    start = np.zeros((batch, group), grad.dtype)
    decay = decays[0]
    for b in range(batch):
        w = start[b]
        for t in range(steps - 1, -1, -1):
            g, y, x = grad[t, b], views[t, b], out[t, b]
            for c in range(group):
                value = g[c]
                x[c] = w[c] + (zero if y[c] <= zero else value)
                w[c] = decay * x[c]
            if cut[t, b]:
                w[:] = 0
    return start


@_filters
def hold(inputs: Array, reset: Array, gains: Array, decays: Array, in_a_row: bool, pools: Array) -> None:
    """Update `pools` [B, k, P] from the filters' values before the inputs [T, B, P] to those after them. Steps before
    an environment's last reset have no effect and are skipped."""
    steps, batch, _ = inputs.shape
    for b in range(batch):
        begin = steps
        while begin > 0:
            begin -= 1
            if reset[begin, b]:
                pools[b] = 0
                break
        for t in range(begin, steps):
            for n in range(len(gains)):
                below = pools[b, n - 1] if in_a_row and n > 0 else inputs[t, b]
                state, gain, decay = pools[b, n], gains[n], decays[n]
                for c in range(len(state)):
                    state[c] = gain * below[c] + decay * state[c]
