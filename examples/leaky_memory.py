"""A complete custom memory core: averages of past inputs that decay at learned rates.

    rl-check-core engram.examples.leaky_memory:LeakyMemory
    rl-train --env cued-catch --core engram.examples.leaky_memory:LeakyMemory --core-args hidden_size=64

A core maps an input and its state to an output and the next state. engram resets the state where episodes end,
and cuts gradients.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engram.agents.cores.core import Core


class LeakyState(NamedTuple):
    """m [B, hidden_size]: the averages."""

    memory: Tensor


class LeakyMemory(Core):
    """a = sigmoid(d),  m_t = a m_{t-1} + (1 - a) W x_t,  output = tanh(U [m_t ; x_t] + b); m starts at zero."""

    def __init__(self, input_size: int, hidden_size: int = 64) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.write = nn.Linear(input_size, hidden_size, bias=False)
        self.decay = nn.Parameter(torch.linspace(0.0, 4.0, hidden_size))
        self.read = nn.Linear(hidden_size + input_size, hidden_size)

    def initial_state(self, batch_size: int) -> LeakyState:
        """Return zeros."""
        return LeakyState(self.decay.new_zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: LeakyState) -> tuple[Tensor, LeakyState]:
        """Map inputs [B, input_size] and state to output [B, hidden_size] and next state."""
        keep = torch.sigmoid(self.decay)
        memory = keep * state.memory + (1 - keep) * self.write(inputs)
        return torch.tanh(self.read(torch.cat([memory, inputs], 1))), LeakyState(memory)
