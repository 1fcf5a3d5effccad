"""Bounds on parameters that let gradients move parameters back inside."""

from typing import Any

import torch
from torch import Tensor


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp parameters x, of any shape, to low..high. Beyond a bound, only a gradient that would move x further out is
    set to 0. A plain clamp has gradient 0 there, so a parameter beyond a bound would never change again."""
    return _Bounded.apply(x, low, high) if torch.is_grad_enabled() else x.clamp(low, high)  # pyright: ignore


class _Bounded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:  # pyright: ignore
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:  # pyright: ignore
        x, *ctx.bounds = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        (x,), (low, high) = ctx.saved_tensors, ctx.bounds
        outward = ((x > high) & (grad < 0)) | ((x < low) & (grad > 0))  # steps go against the gradient
        return torch.where(outward, 0.0, grad), None, None
