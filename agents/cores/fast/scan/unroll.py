"""`scan` for a CPU: compiled loops (kernels.py) as one node of autograd's graph. Differentiable once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..elementwise import Array
from ..routes import check, suits
from .kernels import recur, recur_backward


def can_compile(inputs: Tensor) -> bool:
    """Whether compiled loops can work on such a tensor, real or complex, here and now."""
    return suits(torch.view_as_real(inputs) if inputs.is_complex() else inputs)


def scan_compiled(
    decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None
) -> Tensor:
    """Like `scan`."""
    steps, batch, *features = inputs.shape
    check("scan", inputs, start=(start, (batch, *features)), reset=(reset, (steps, batch)))
    if decay.shape not in (inputs.shape, (1, 1, *features)) or decay.dtype != inputs.dtype:
        raise ValueError(f"scan: decay is {decay.dtype} {list(decay.shape)}; expected as inputs, {list(inputs.shape)}")
    cut = reset
    if bptt_length is not None:
        time = torch.arange(len(reset)).unsqueeze(1)
        cut = reset | ((time > 0) & (time % bptt_length == 0))
    out = _Scan.apply(decay.flatten(2), inputs.flatten(2), reset, cut, start.flatten(1))  # pyright: ignore
    return out.view(inputs.shape)


class _Scan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + x_t, features flattened."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, reset: Tensor, cut: Tensor, start: Tensor) -> Tensor:
        """decay [T, B, C] or [1, 1, C], inputs [T, B, C], reset and cut bool [T, B], start [B, C] -> h [T, B, C]."""
        out = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        recur(_array(decay), _array(inputs), _array(reset), _array(start), out.numpy())
        ctx.save_for_backward(decay, out, reset, cut, start)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        """dh [T, B, C] -> gradients of decay, inputs and start."""
        decay, states, reset, cut, start = ctx.saved_tensors
        on_inputs = torch.empty_like(states)
        on_decay = torch.zeros_like(decay, memory_format=torch.contiguous_format)
        on_start = torch.zeros_like(start, memory_format=torch.contiguous_format)
        recur_backward(
            *map(_array, (grad, decay, states, reset, cut, start)), *map(_array, (on_inputs, on_decay, on_start))
        )
        return on_decay, on_inputs, None, None, on_start


def _array(tensor: Tensor) -> Array:
    """The same memory as a numpy array; a tensor with gaps or of a lazy conjugate is copied."""
    return tensor.detach().resolve_conj().contiguous().numpy()
