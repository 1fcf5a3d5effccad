"""Feedforward control without memory, which must fail at every memory task."""

from typing import NamedTuple

from torch import Tensor

from ..kernels import Linear
from .core import Core


class FeedforwardState(NamedTuple):
    """Empty state: no leaves."""


class Feedforward(Core):
    """Control without memory: one hidden layer, y = relu(W x + b), W [hidden_size, input_size]."""

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.hidden = Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> FeedforwardState:
        return FeedforwardState()

    def forward(self, inputs: Tensor, state: FeedforwardState) -> tuple[Tensor, FeedforwardState]:
        """inputs [B, input_size] -> output [B, hidden_size]."""
        return self.hidden(inputs).relu(), state

    def unroll_at_once(
        self, inputs: Tensor, reset: Tensor, state: FeedforwardState, bptt_length: int | None = None
    ) -> tuple[Tensor, FeedforwardState, None]:
        """Compute all T steps at once: without a state, there is nothing to reset or truncate."""
        return self.hidden(inputs).relu(), state, None
