"""Cores that compute all steps of an unroll at once, and the common structure of those published from 2022 to 2025:
residual layers around a recurrence.

x^0_t = W_e x_t + b_e
x^l_t = x^{l-1}_t + mixer^l(LayerNorm(x^{l-1}_t)), l = 1 .. num_layers
output = x^L_t [hidden_size]
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...sequence.scan import scan
from ..core import Axis, Core, CoreState, Route, Unrolled, map_state, readable
from ..fast.routes import stands_for


class AtOnce(Core):
    """Core whose `_run` computes one step or all steps of an unroll."""

    loops_over_time = False

    def _run(
        self, inputs: Tensor, state: Any, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, Any]:
        """Inputs of one step [B, D], or with `reset` (bool [T, B]) of T steps [T, B, D], and the state -> outputs and
        the last state."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._run(inputs, state)

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: Any, bptt_length: int | None) -> Unrolled:
        return *self._run(inputs, state, reset, bptt_length), None


def recur(
    decay: Tensor, added: Tensor, start: Tensor, reset: Tensor | None, bptt_length: int | None
) -> tuple[Tensor, Tensor]:
    """h_t = decay_t * h_{t-1} + added_t of one step or, with `reset`, of T steps -> h and the last h. Of complex h, the
    first and the last value are real tensors [..., 2], as they are in states. A decay without the axes of `added` is
    constant."""
    if decay.is_complex():
        start = torch.view_as_complex(start.contiguous())
    if reset is None:
        h = last = decay * start + added
    else:
        constant = decay.dim() < added.dim()
        h = scan(decay.expand(1, 1, *decay.shape) if constant else decay, added, reset, start, bptt_length)
        last = h[-1]
    return h, torch.view_as_real(last) if decay.is_complex() else last


class Mixer(nn.Module):
    """The recurrence of one layer."""

    compiled = False  # Whether T steps at once need compiled code

    def initial_state(self, batch_size: int) -> CoreState:
        """Return a NamedTuple of leaves [batch_size, ...]."""
        raise NotImplementedError

    def forward(
        self, u: Tensor, state: Any, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, Any]:
        """u of one step [B, hidden_size], or with `reset` (bool [T, B]) of T steps [T, B, hidden_size], and the state
        -> addition to x, last state."""
        raise NotImplementedError


class Stack(AtOnce):
    """Base class of cores that are stacks of residual layers; the leaves of their states are [B, num_layers, ...]."""

    def __init__(self, input_size: int, hidden_size: int, mixers: list[Mixer]) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.encoder = nn.Linear(input_size, hidden_size)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in mixers)
        self.mixers = nn.ModuleList(mixers)
        self.parts_of_state = tuple(Axis("layer", leaf, 1) for leaf in self.initial_state(1)._fields)

    def initial_state(self, batch_size: int) -> CoreState:
        return _join([mixer.initial_state(batch_size) for mixer in self._mixers()])

    def fast_route(self, inputs: Tensor) -> Route | None:
        compiled = any(mixer.compiled for mixer in self._mixers())
        possible = stands_for(self, inputs) if compiled else readable(inputs)
        return self.unroll_at_once if possible else None

    def _run(
        self, inputs: Tensor, state: CoreState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, CoreState]:
        x, states = self.encoder(inputs), list[CoreState]()
        for index, (norm, mixer) in enumerate(zip(self.norms, self._mixers(), strict=True)):
            before = map_state(lambda leaf, index=index: leaf[:, index], state)
            added, after = mixer(norm(x), before, reset, bptt_length)
            x = x + added
            states.append(after)
        return x, _join(states)

    def _mixers(self) -> list[Mixer]:
        return list(self.mixers)  # pyright: ignore[reportReturnType]


def _join(states: list[CoreState]) -> CoreState:
    return map_state(lambda *leaves: torch.stack(leaves, 1), *states)
