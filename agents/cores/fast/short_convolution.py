"""Causal convolutions of every channel over a few steps on a CPU, as compiled loops. Differentiable once.

    y_t = sum_i w_i x_{t-i}, i = 0 .. K - 1, t - i not before the first step of t's episode

Shapes: T steps, B environments, C channels, K taps; x [K - 1 + T, B, C], whose first K - 1 steps precede the unroll.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....base.compiled import compiled
from .elementwise import Array, part
from .routes import arrays, by_groups, check

ENVIRONMENTS = 8  # Per piece of work

_loops = compiled("reassoc", "nsz", allocates=False)


@part
def add_product(total: Array, x: Array, y: Array) -> None:
    """total [F] += x y."""
    for c in range(len(total)):
        total[c] += x[c] * y[c]


@_loops
def convolve(first: int, last: int, x: Array, taps: Array, began: Array, out: Array) -> None:
    """Write y [T, B, C] of environments first to last - 1 to `out`, initially zero; began as in `Convolution`."""
    size = len(taps)
    for t in range(len(out)):
        for e in range(first, last):
            for lag in range(min(size, t - began[t, e] + 1)):
                add_product(out[t, e], taps[lag], x[t - lag + size - 1, e])


@_loops
def convolve_backward(
    first: int, last: int, cut: int, x: Array, taps: Array, began: Array, grad: Array, on_x: Array, on_taps: Array
) -> None:
    """The adjoint of `convolve`: on_x and on_taps [B, K, C] are initially zero. No gradient passes to steps before the
    last multiple of `cut`, except from the first piece to steps before the unroll."""
    size = len(taps)
    for t in range(len(grad)):
        piece = t - t % cut if cut > 0 else 0
        for e in range(first, last):
            for lag in range(min(size, t - began[t, e] + 1)):
                dy, row = grad[t, e], t - lag + size - 1
                add_product(on_taps[e, lag], x[row, e], dy)
                if piece == 0 or t - lag >= piece:
                    add_product(on_x[row, e], taps[lag], dy)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, began: Tensor, cut: int) -> Tensor:
        """x [K - 1 + T, B, C], taps [K, C], cut (0: none) -> y [T, B, C]. began int64 [T, B]: the episode's first step;
        -K if it is before the unroll."""
        steps, batch = began.shape
        check("short convolution", x, x=(x, (len(taps) - 1 + steps, batch, taps.shape[1])), taps=(taps, taps.shape))
        out = x.new_zeros(steps, *x.shape[1:])
        tensors = arrays(x, taps, began, out)
        by_groups(lambda _, first, last: convolve(first, last, *tensors), batch, ENVIRONMENTS)
        ctx.save_for_backward(x, taps, began)
        ctx.cut = cut
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, taps, began = ctx.saved_tensors
        batch = x.shape[1]
        on_x, on_taps = x.new_zeros(x.shape), taps.new_zeros(batch, *taps.shape)
        inputs, outputs = arrays(x, taps, began), arrays(grad, on_x, on_taps)
        by_groups(
            lambda _, first, last: convolve_backward(first, last, ctx.cut, *inputs, *outputs), batch, ENVIRONMENTS
        )
        return on_x, on_taps.sum(0), None, None
