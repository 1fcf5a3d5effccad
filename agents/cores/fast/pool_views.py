"""Reads of a core from its pools at every step of an unroll, without forming the pools (for a CPU).

Pools are linear in the inputs, and so is a viewport up to its ReLU: V_n p^n, with p^n a filter of W x, is the same
filter of (V_n W) x (Stepleton et al. 2018, section 4.2). Viewports are several times narrower than pools, so the work
at every step is one matrix multiplication and the filters, and the gradient likewise.

Shapes: T steps, B environments, D inputs, P features of a pool, k pools, V values seen of each, C = k V channels.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...kernels import linear
from .filters import hold, see, see_backward, smooth_backward
from .routes import arrays


class Filters(NamedTuple):
    """k low-pass filters p^n_t = gain_n below_t + decay_n p^n_{t-1}; gain_1 is 1."""

    gains: Tensor  # [k]
    decays: Tensor  # [k]
    in_a_row: bool  # Whether each pool filters the previous one; otherwise all pools filter the input.
    kept: Tensor  # [k, k]: remaining share of the initial pools after T steps


class Views(torch.autograd.Function):
    """relu(V_n p^n_t + b_n) for all n and t, and the last pools; gradient passes only through the first pool."""

    @staticmethod
    def forward(
        ctx: Any,
        filters: Filters,
        reset: Tensor,
        cut: Tensor | None,
        inputs: Tensor,
        start: Tensor,
        embedding: Tensor | None,
        viewports: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """inputs [T, B, D], start [B, k, P], viewports [k, P, V], bias [k, V] -> views [T, B, C], pools [B, k, P]. The
        embedding is W [P, D], or None if the inputs are embedded already. No gradient passes from t to t - 1 where
        `cut` (bool [T, B]) is set, which includes all resets; None: it is cut at resets alone."""
        start = torch.where(reset[0].reshape(-1, 1, 1), 0.0, start)
        wide = viewports.transpose(0, 1).flatten(1)  # [P, C]
        matrix = wide if embedding is None else embedding.t() @ wide
        views = linear(inputs, matrix.t())
        gains, decays, on_start, resets, offset, visible = arrays(
            filters.gains, filters.decays, start @ wide, reset, bias.flatten(), views
        )
        see(visible, on_start, resets, gains, decays, filters.in_a_row, offset)
        ctx.filters, ctx.reset, ctx.cut = filters, reset, cut
        ctx.save_for_backward(inputs, start, embedding, viewports, views)
        ctx.set_materialize_grads(False)
        return views, _last_pools(filters, inputs, start, embedding, reset)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        """d views [T, B, C], d pools [B, k, P] -> gradients of inputs, start, embedding, viewports, bias."""
        inputs, start, embedding, viewports, views = ctx.saved_tensors
        through = _Path(inputs, embedding, torch.zeros_like(start))
        grad_viewports = grad_bias = None
        if grads[0] is not None:
            on_inputs, on_start, path, path_start, grad_bias = _adjoint(grads[0], views, viewports, ctx)
            gradient = inputs.flatten(0, 1).t() @ on_inputs.flatten(0, 1)  # [D, C]
            gradient = gradient if embedding is None else embedding @ gradient
            gradient += start.flatten(0, 1).t() @ on_start.flatten(0, 1)
            grad_viewports = gradient.unflatten(1, (len(viewports), -1)).transpose(0, 1)
            through.add_seen(path, path_start, viewports[0])
        if grads[1] is not None:
            cut = ctx.reset if ctx.cut is None else ctx.cut
            through.add_last(grads[1][:, 0], float(ctx.filters.decays[0]), cut)
        return None, None, None, through.inputs, through.start, through.embedding, grad_viewports, grad_bias


class _Path:
    """The gradient that passes through the first pool: of inputs [T, B, D], first pools [B, k, P] and W [P, D]."""

    def __init__(self, x: Tensor, weight: Tensor | None, start: Tensor) -> None:
        self.x, self.weight, self.start = x, weight, start
        self.inputs: Tensor | None = None
        self.embedding: Tensor | None = None

    def add_seen(self, path: Tensor, path_start: Tensor, viewport: Tensor) -> None:
        """Add the gradients of the first viewport's views [T, B, V] and of its initial view [B, V]."""
        matrix = viewport.t() if self.weight is None else viewport.t() @ self.weight
        self.inputs = linear(path, matrix.t())
        if self.weight is not None:
            self.embedding = viewport @ (path.flatten(0, 1).t() @ self.x.flatten(0, 1))
        self.start[:, 0] += path_start @ viewport.t()

    def add_last(self, grad: Tensor, decay: float, cut: Tensor) -> None:
        """Add the gradient of the last step's first pool [B, P]; it is decay^j times as large j steps earlier."""
        steps = len(cut)
        age = torch.arange(steps - 1, -1, -1, dtype=grad.dtype).unsqueeze(1)
        cuts = cut.flip(0).cumsum(0).flip(0)  # at this step and later
        left = torch.where(cuts == cut, decay**age, 0.0).unsqueeze(2)
        on_inputs = left * (grad if self.weight is None else grad @ self.weight)
        self.inputs = on_inputs if self.inputs is None else self.inputs + on_inputs
        if self.weight is not None:
            gradient = grad.t() @ (left * self.x).sum(0)
            self.embedding = gradient if self.embedding is None else self.embedding + gradient
        self.start[:, 0] += torch.where(cuts[0].unsqueeze(1) == 0, decay**steps * grad, 0.0)


def _adjoint(grad: Tensor, views: Tensor, viewports: Tensor, ctx: Any) -> tuple[Tensor, ...]:
    """Gradient of the views -> gradients of the product [T, B, C] and of the initial views [B, k, C], their parts
    that pass through the first pool, [T, B, V] and [B, V], and the gradient of the bias [k, V]."""
    filters: Filters = ctx.filters
    count, width = len(viewports), viewports.shape[2]
    on_inputs, bias = torch.empty_like(views), torch.zeros(count * width, dtype=views.dtype)
    g, visible, reset, gains, decays, out, offset = arrays(
        grad, views, ctx.reset, filters.gains, filters.decays, on_inputs, bias
    )
    on_start = torch.from_numpy(see_backward(g, visible, reset, gains, decays, filters.in_a_row, out, offset))
    if ctx.cut is None:
        path, path_start = on_inputs[:, :, :width].contiguous(), on_start[:, 0, :width]
    else:
        path = views.new_empty(*views.shape[:2], width)
        cut, out = arrays(ctx.cut, path)
        path_start = torch.from_numpy(smooth_backward(g, visible, cut, decays, out))
    return on_inputs, on_start, path, path_start, bias.view(count, width)


def _last_pools(filters: Filters, inputs: Tensor, start: Tensor, embedding: Tensor | None, reset: Tensor) -> Tensor:
    """The pools [B, k, P] after the last step."""
    pools = inputs.new_zeros(inputs.shape[1], len(filters.gains), inputs.shape[2])
    held, x, resets, gains, decays = arrays(pools, inputs, reset, filters.gains, filters.decays)
    hold(x, resets, gains, decays, filters.in_a_row, held)
    pools = pools if embedding is None else pools @ embedding.t()
    return pools + torch.where(reset.any(0).reshape(-1, 1, 1), 0.0, filters.kept @ start)
