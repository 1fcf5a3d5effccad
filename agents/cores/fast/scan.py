"""Linear recurrences and short convolutions over time in compiled code, each as one node of the autograd graph, for a
CPU. Differentiable once.

Values of recurrences are real or complex. Shapes: T steps, B environments, C channels.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ....base.compiled import compiled
from .elementwise import Array, part
from .routes import arrays, by_groups, check, suits

ENVIRONMENTS = 8  # Of a convolution, per piece of work

_scans = compiled(allocates=False)
_convolutions = compiled("reassoc", "nsz", allocates=False)


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
    return suits(torch.view_as_real(inputs) if inputs.is_complex() else inputs)


def scan_compiled(
    decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None
) -> Tensor:
    """Compute `linear.stack.scan` in compiled code."""
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
        recur(*_arrays(decay, inputs, reset, start, out))
        ctx.save_for_backward(decay, out, reset, cut, start)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        decay, states, reset, cut, start = ctx.saved_tensors
        on_inputs = torch.empty_like(states)
        on_decay = torch.zeros_like(decay, memory_format=torch.contiguous_format)
        on_start = torch.zeros_like(start, memory_format=torch.contiguous_format)
        to_inputs, to_decay, to_start = arrays(on_inputs, on_decay, on_start)
        g, a, h, resets, cuts, first = _arrays(grad, decay, states, reset, cut, start)
        recur_backward(g, a, h, resets, cuts, first, (to_inputs, to_decay, to_start))
        return on_decay, on_inputs, None, None, on_start


def _arrays(*tensors: Tensor) -> list[Array]:
    """As `routes.arrays`, for tensors that may be lazily conjugated."""
    return arrays(*map(Tensor.resolve_conj, tensors))


# -- causal convolutions of every channel over K steps: y_t = sum_i w_i x_{t-i}, t - i not before the episode of t -----


@part
def add_product(total: Array, x: Array, y: Array) -> None:
    for c in range(len(total)):
        total[c] += x[c] * y[c]


@_convolutions
def convolve(first: int, last: int, x: Array, taps: Array, began: Array, out: Array) -> None:
    """Write y [T, B, C] of environments first to last - 1 to `out`, initially zero; began as in `Convolution`."""
    size = len(taps)
    for t in range(len(out)):
        for e in range(first, last):
            for lag in range(min(size, t - began[t, e] + 1)):
                add_product(out[t, e], taps[lag], x[t - lag + size - 1, e])


@_convolutions
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
        """x [K - 1 + T, B, C], from K - 1 steps before the unroll, taps w [K, C], cut (0: none) -> y [T, B, C].
        began int64 [T, B]: the episode's first step; -K if it is before the unroll."""
        steps, batch = began.shape
        check("short convolution", x, x=(x, (len(taps) - 1 + steps, batch, taps.shape[1])), taps=(taps, taps.shape))
        out = x.new_zeros(steps, *x.shape[1:])
        tensors = arrays(x, taps, began, out)
        by_groups(lambda _, begin, end: convolve(begin, end, *tensors), batch, ENVIRONMENTS)
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
        by_groups(lambda _, begin, end: convolve_backward(begin, end, ctx.cut, *inputs, *outputs), batch, ENVIRONMENTS)
        return on_x, on_taps.sum(0), None, None


def gradient_cuts(reset: Tensor, bptt_length: int | None) -> Tensor:
    """Return the steps without gradient to the previous step, bool [T, B]: resets, and every `bptt_length`-th step."""
    if bptt_length is None:
        return reset
    time = torch.arange(len(reset), device=reset.device).unsqueeze(1)
    return reset | ((time > 0) & (time % bptt_length == 0))
