"""Residual layers around a recurrence: the common structure of the linear cores published from 2022 to 2025.

x^0_t = W_e x_t + b_e
x^l_t = x^{l-1}_t + mixer^l(LayerNorm(x^{l-1}_t)), l = 1 .. num_layers
output = x^L_t [hidden_size]
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core import Axis, Core, CoreState, Route, map_state, named_leaves, readable
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
        return _join([mixer.initial_state(batch_size) for mixer in self._mixers()])

    def parts_of_state(self) -> dict[str, list[Axis]]:
        leaves = named_leaves(self.initial_state_form())
        return {"layer": [Axis(leaf, 1, len(self.mixers)) for leaf in leaves]}

    def forward(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        return self._through_layers(inputs, state, lambda mixer, u, before: mixer(u, before))

    def fast_route(self, inputs: Tensor) -> Route | None:
        compiled = any(mixer.compiled for mixer in self._mixers())
        possible = stands_for(self, inputs) if compiled else readable(inputs)
        return self.unroll_at_once if possible else None

    def unroll_at_once(
        self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None
    ) -> tuple[Tensor, CoreState, Tensor | None]:
        def unroll(mixer: Mixer, u: Tensor, before: CoreState) -> tuple[Tensor, CoreState]:
            return mixer.unroll(u, reset, before, bptt_length)

        return *self._through_layers(inputs, state, unroll), None

    def _through_layers(
        self, inputs: Tensor, state: CoreState, run: Callable[[Mixer, Tensor, CoreState], tuple[Tensor, CoreState]]
    ) -> tuple[Tensor, CoreState]:
        x, states = self.encoder(inputs), list[CoreState]()
        for index, (norm, mixer) in enumerate(zip(self.norms, self._mixers(), strict=True)):
            added, after = run(mixer, norm(x), map_state(lambda leaf, index=index: leaf[:, index], state))
            x = x + added
            states.append(after)
        return x, _join(states)

    def _mixers(self) -> list[Mixer]:
        return list(self.mixers)  # pyright: ignore[reportReturnType]


def _join(states: list[CoreState]) -> CoreState:
    return map_state(lambda *leaves: torch.stack(leaves, 1), *states)
