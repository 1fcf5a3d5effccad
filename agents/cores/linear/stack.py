"""Cores that compute all steps of an unroll at once, stacks of residual layers around such recurrences, and the scan:
a linear recurrence over time without a loop over all steps, exact at resets.

    h_t = a_t * h_{t-1} + x_t        elementwise, real or complex, h_{t-1} = 0 where a new sequence begins

On a CPU, compiled code computes h step by step (cores/fast/scan.py). Elsewhere, blocks of about sqrt(T) consecutive
steps are processed in parallel from zero; with p_t the product of a since the block's start,

    h_t = (h_t from zero) + p_t * (h at the end of the previous block)

There is no division by powers of a, so nothing overflows (Blelloch 1990, "Prefix sums and their applications", 1.4).

Shapes: T steps, B environments, L steps per block, N blocks, "..." features.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core import Axis, Core, CoreState, Route, Unrolled, map_state, readable
from ..fast.routes import stands_for
from ..fast.scan import can_compile, scan_compiled

SHORT = 24  # Largest number of steps in a block that `scan` processes step by step


class Steps(NamedTuple):
    """T steps of an unroll; None stands for a single step without reset."""

    reset: Tensor  # bool [T, B]
    bptt_length: int | None


class AtOnce(Core):
    """Core whose `_run` computes one step or all steps of an unroll."""

    loops_over_time = False

    def _run(self, inputs: Tensor, state: Any, steps: Steps | None) -> tuple[Tensor, Any]:
        """Inputs [B, D], with `steps` [T, B, D], and the state -> outputs and the last state."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._run(inputs, state, None)

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: Any, bptt_length: int | None) -> Unrolled:
        return *self._run(inputs, state, Steps(reset, bptt_length)), None


def recur(decay: Tensor, added: Tensor, start: Tensor, steps: Steps | None) -> tuple[Tensor, Tensor]:
    """h_t = decay_t * h_{t-1} + added_t -> h and the last h. `start` and the last h are real tensors [..., 2] if h is
    complex, as in states. A decay without the axes of `added` is constant."""
    if decay.is_complex():
        start = torch.view_as_complex(start.contiguous())
    if steps is None:
        h = last = decay * start + added
    else:
        decays = decay.expand(1, 1, *decay.shape) if decay.dim() < added.dim() else decay
        h = scan(decays, added, steps.reset, start, steps.bptt_length)
        last = h[-1]
    return h, torch.view_as_real(last) if decay.is_complex() else last


def through(
    layers: Iterable[Callable[..., tuple[Tensor, Any]]], x: Tensor, state: Any, steps: Steps | None
) -> tuple[Tensor, Any]:
    """Apply layers (x, state, steps) -> (x, last state) one after the other; leaves of `state` are [B, layers, ...]."""
    states: list[CoreState] = []
    for index, layer in enumerate(layers):
        x, last = layer(x, map_state(lambda leaf, index=index: leaf[:, index], state), steps)
        states.append(last)
    return x, _join(states)


class Mixer(nn.Module):
    """Recurrence of one layer. forward(u, state, steps): u [B, hidden_size], with `steps` [T, B, hidden_size] ->
    addition to x, last state."""

    compiled = False  # Whether T steps at once need compiled code

    def initial_state(self, batch_size: int) -> CoreState:
        raise NotImplementedError


class Stack(AtOnce):
    """Residual layers around mixers made with `mixer(hidden_size, *options)`.

    x^0_t = W_e x_t + b_e,   x^l_t = x^{l-1}_t + mixer^l(LayerNorm(x^{l-1}_t)), l = 1 .. num_layers; output: the last
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, mixer: Callable[..., Mixer], *options: float
    ) -> None:
        mixers = [mixer(hidden_size, *options) for _ in range(num_layers)]
        super().__init__(input_size, hidden_size)
        self.encoder = nn.Linear(input_size, hidden_size)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in mixers)
        self.mixers = nn.ModuleList(mixers)
        self.parts_of_state = tuple(Axis("layer", leaf, 1) for leaf in self.initial_state(1)._fields)

    def initial_state(self, batch_size: int) -> CoreState:
        return _join([mixer.initial_state(batch_size) for mixer in cast(Iterable[Mixer], self.mixers)])

    def fast_route(self, inputs: Tensor) -> Route | None:
        compiled = any(mixer.compiled for mixer in cast(Iterable[Mixer], self.mixers))
        return self.unroll_at_once if (stands_for(self, inputs) if compiled else readable(inputs)) else None

    def _run(self, inputs: Tensor, state: CoreState, steps: Steps | None) -> tuple[Tensor, CoreState]:
        layers = (partial(_add, norm, mixer) for norm, mixer in zip(self.norms, self.mixers, strict=True))
        return through(layers, self.encoder(inputs), state, steps)


def _add(norm: nn.Module, mixer: nn.Module, x: Tensor, state: Any, steps: Steps | None) -> tuple[Tensor, Any]:
    added, last = mixer(norm(x), state, steps)
    return x + added, last


def _join(states: list[CoreState]) -> CoreState:
    return map_state(lambda *leaves: torch.stack(leaves, 1), *states)


def scan(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None) -> Tensor:
    """Compute h_t = decay_t * h_{t-1} + inputs_t for all T steps: [T, B, ...].

    Args:
        decay: a [T, B, ...], or [1, 1, ...] if it is constant.
        inputs: x [T, B, ...], of the same type as `decay`.
        reset: bool [T, B]; where set, h_{t-1} is replaced by zero, by selection, so that not even nan passes.
        start: h_{-1} [B, ...].
        bptt_length: no gradient passes from step t to step t - 1 where t is a multiple of this.
    """
    way = scan_compiled if can_compile(inputs) else scan_blocks
    return way(decay, inputs, reset, start, bptt_length)


def scan_blocks(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor, bptt_length: int | None = None) -> Tensor:
    """Compute `scan` with torch operations, for every device and differentiable to any order."""
    length, constant = len(inputs), decay.shape[:2] == (1, 1)
    cut = bptt_length is not None and bptt_length < length
    if not cut and length <= SHORT:
        return _step_by_step(decay, inputs, reset, start)
    size = bptt_length if cut and bptt_length is not None else math.isqrt(length - 1) + 1
    inputs, reset, decay = _fold(inputs, size), _fold(reset, size), decay if constant else _fold(decay, size)
    local = scan_blocks(decay, inputs, reset, torch.zeros_like(inputs[0]))
    # Products of a since the block's start. After a reset, they are unused, and 0 if a varies between steps, so that
    # nan before the reset does not pass.
    if constant:
        product = decay.expand(size, *decay.shape[1:]).cumprod(0)
    else:
        product = scan_blocks(decay, torch.zeros_like(decay), reset, torch.ones_like(decay[0]))
    alive = (reset.cumsum(0) == 0).reshape(size, -1, *start.shape[:1], *[1] * (start.dim() - 1))
    shape = alive.shape[1:3]
    ends, decays = local[-1].unflatten(0, shape), product[-1].expand_as(local[-1]).unflatten(0, shape)
    carry, carries = start, list[Tensor]()
    for block in range(len(ends)):
        if cut and block > 0:
            carry = carry.detach()
        carries.append(carry)
        carry = ends[block] + decays[block] * torch.where(alive[-1, block], carry, 0)
    whole = local + product * torch.where(alive, torch.stack(carries), 0).flatten(1, 2)
    return whole.unflatten(1, shape).transpose(0, 1).flatten(0, 1)[:length]


def _fold(tensor: Tensor, size: int) -> Tensor:
    """Cut [T, B, ...] into N parallel blocks [L, N * B, ...]; steps beyond T are 0."""
    missing = -len(tensor) % size
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    return tensor.unflatten(0, (-1, size)).transpose(0, 1).flatten(1, 2)


def _step_by_step(decay: Tensor, inputs: Tensor, reset: Tensor, start: Tensor) -> Tensor:
    any_reset = reset.any(1).tolist() if readable(reset) else [True] * len(reset)
    state, states = start, list[Tensor]()
    for t, starts in enumerate(any_reset):
        if starts:
            state = torch.where(reset[t].reshape(-1, *[1] * (state.dim() - 1)), 0, state)
        state = torch.addcmul(inputs[t], decay[t if len(decay) > 1 else 0].expand_as(state), state)
        states.append(state)
    return torch.stack(states)
