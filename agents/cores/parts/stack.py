"""Residual layers around a recurrence: the common structure of the linear cores published from 2022 to 2025.

x^0_t = W_e x_t + b_e
x^l_t = x^{l-1}_t + mixer^l(LayerNorm(x^{l-1}_t)), l = 1 .. num_layers
output = x^L_t [hidden_size]
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..core import Axis, Core, CoreState, Route, Unrolled, map_state, readable
from ..fast.routes import stands_for


class Mixer(nn.Module):
    """The recurrence of one layer, on inputs u [..., hidden_size]."""

    compiled = False  # Whether `unroll` needs compiled code

    def initial_state(self, batch_size: int) -> CoreState:
        """Return a NamedTuple of leaves [batch_size, ...]."""
        raise NotImplementedError

    def forward(self, u: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step: u [B, hidden_size], state -> addition to x [B, hidden_size], next state."""
        raise NotImplementedError

    def unroll(self, u: Tensor, reset: Tensor, state: Any, bptt_length: int | None) -> tuple[Tensor, Any]:
        """u [T, B, hidden_size], reset bool [T, B], state -> addition to x [T, B, hidden_size], last state."""
        raise NotImplementedError


class Stack(Core):
    """Base class of cores that are stacks of residual layers; the leaves of their states are [B, num_layers, ...]."""

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int, mixers: list[Mixer]) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.encoder = nn.Linear(input_size, hidden_size)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in mixers)
        self.mixers = nn.ModuleList(mixers)

    def initial_state(self, batch_size: int) -> CoreState:
        """Return the initial states of all layers, stacked."""
        return _join([mixer.initial_state(batch_size) for mixer in self._mixers()])

    def parts_of_state(self) -> dict[str, list[Axis]]:
        return {"layer": [Axis(leaf, 1, len(self.mixers)) for leaf in self.initial_state(1)._fields]}

    def forward(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """inputs [B, input_size], state -> output [B, hidden_size], next state."""
        x, states = self.encoder(inputs), list[CoreState]()
        for index, (norm, mixer) in enumerate(zip(self.norms, self._mixers(), strict=True)):
            added, after = mixer(norm(x), _layer(state, index))
            x = x + added
            states.append(after)
        return x, _join(states)

    def fast_route(self, inputs: Tensor) -> Route | None:
        """Return the route that runs layer by layer over all T steps, if possible."""
        compiled = any(mixer.compiled for mixer in self._mixers())
        possible = stands_for(self, inputs) if compiled else readable(inputs)
        return self.unroll_at_once if possible else None

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None) -> Unrolled:
        """Run `Core.unroll` layer by layer over all T steps."""
        x, states = self.encoder(inputs), list[CoreState]()
        for index, (norm, mixer) in enumerate(zip(self.norms, self._mixers(), strict=True)):
            added, after = mixer.unroll(norm(x), reset, _layer(state, index), bptt_length)
            x = x + added
            states.append(after)
        return x, _join(states), None

    def _mixers(self) -> list[Mixer]:
        return list(self.mixers)  # pyright: ignore[reportReturnType]


def _layer(state: CoreState, index: int) -> CoreState:
    return map_state(lambda leaf: leaf[:, index], state)


def _join(states: list[CoreState]) -> CoreState:
    return map_state(lambda *leaves: torch.stack(leaves, 1), *states)
