"""Cores that compute all steps of an unroll at once, and stacks of residual layers around such recurrences."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...sequence.scan import scan
from ..core import Axis, Core, CoreState, Route, Unrolled, map_state, readable
from ..fast.routes import stands_for


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
