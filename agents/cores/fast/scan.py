"""Linear recurrences step by step in compiled code, as one node of the autograd graph, for a CPU. Differentiable once.

Values are real or complex. Shapes: T steps, B environments, C channels.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....base.compiled import compiled
from .elementwise import Array
from .routes import check, gradient_cuts, suits

_scans = compiled(allocates=False)


@_scans
def recur(decay: Array, inputs: Array, reset: Array, start: Array, out: Array) -> None:
    """h_t = a_t h_{t-1} + x_t into `out` [T, B, C]; at a reset (bool [T, B]) h_t = x_t. decay a [T, B, C] or [1, 1, C],
    inputs x [T, B, C], start h_{-1} [B, C]."""
    steps, batch, channels = inputs.shape
    same = len(decay) == 1 and len(decay[0]) == 1
    for t in range(steps):
        for b in range(batch):
            before = start[b] if t == 0 else out[t - 1, b]
            a = decay[0, 0] if same else decay[t, b]
            x, h = inputs[t, b], out[t, b]
            if reset[t, b]:
                for c in range(channels):
                    h[c] = x[c]
            else:
                for c in range(channels):
                    h[c] = a[c] * before[c] + x[c]


@_scans
def recur_backward(
    grad: Array, decay: Array, states: Array, reset: Array, cut: Array, start: Array, grads: tuple[Array, Array, Array]
) -> None:
    """The adjoint of `recur`, the same recurrence backward in time.

        dx_t = dh_t + conj(a_{t+1}) dx_{t+1},   da_t = dx_t conj(h_{t-1})

    grad dh and states h [T, B, C]; no gradient passes from t to t - 1 where `cut` (bool [T, B]) is set, which includes
    all resets. `grads` are those of inputs, decay and start, the last two initially zero; a decay shared by all steps
    receives the sum.
    """
    on_inputs, on_decay, on_start = grads
    steps, batch, channels = grad.shape
    same = len(decay) == 1 and len(decay[0]) == 1
    for t in range(steps - 1, -1, -1):
        for b in range(batch):
            g, dx = grad[t, b], on_inputs[t, b]
            if t + 1 < steps and not cut[t + 1, b]:
                a, later = (decay[0, 0] if same else decay[t + 1, b]), on_inputs[t + 1, b]
                for c in range(channels):
                    dx[c] = g[c] + np.conj(a[c]) * later[c]
            else:
                for c in range(channels):
                    dx[c] = g[c]
            if not reset[t, b]:
                before = start[b] if t == 0 else states[t - 1, b]
                da = on_decay[0, 0] if same else on_decay[t, b]
                for c in range(channels):
                    da[c] += dx[c] * np.conj(before[c])
    for b in range(batch):
        if not cut[0, b]:
            a, first, out = (decay[0, 0] if same else decay[0, b]), on_inputs[0, b], on_start[b]
            for c in range(channels):
                out[c] = np.conj(a[c]) * first[c]


def can_compile(inputs: Tensor) -> bool:
    """Whether compiled loops support this tensor, real or complex, in the current context."""
    return suits(torch.view_as_real(inputs) if inputs.is_complex() else inputs)


def scan_compiled(
    decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None
) -> Tensor:
    """Compute `agents.sequence.scan.scan` in compiled code."""
    steps, batch, *features = inputs.shape
    check("scan", inputs, start=(start, (batch, *features)), reset=(reset, (steps, batch)))
    cut = gradient_cuts(reset, bptt_length)
    out = _Scan.apply(decay.flatten(2), inputs.flatten(2), reset, cut, start.flatten(1))  # pyright: ignore
    return out.view(inputs.shape)


class _Scan(torch.autograd.Function):
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
        decay, states, reset, cut, start = ctx.saved_tensors
        on_inputs = torch.empty_like(states)
        on_decay = torch.zeros_like(decay, memory_format=torch.contiguous_format)
        on_start = torch.zeros_like(start, memory_format=torch.contiguous_format)
        grads = _array(on_inputs), _array(on_decay), _array(on_start)
        g, a, h, resets, cuts, first = map(_array, (grad, decay, states, reset, cut, start))
        recur_backward(g, a, h, resets, cuts, first, grads)
        return on_decay, on_inputs, None, None, on_start


def _array(tensor: Tensor) -> Array:
    """As `routes.arrays`, for tensors that may be lazily conjugated."""
    return tensor.detach().resolve_conj().contiguous().numpy()
