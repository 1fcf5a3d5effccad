"""Gated recurrent unit (Cho et al. 2014), in the form with the reset gate after the recurrent product."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .core import Core


class GRUState(NamedTuple):
    """h [B, hidden_size]: the last output."""

    h: Tensor


class GRU(Core):
    """One layer of gated recurrent units.

    r, z, n = W_x x + b_x,   r', z', n' = W_h h + b_h      three blocks of hidden_size rows, in this order
    r = sigmoid(r + r'),  z = sigmoid(z + z'),  n = tanh(n + r * n')
    h' = n + z * (h - n)                                   the output

    Parameters, their order and their initialisation are those of `torch.nn.GRUCell`. The first state is zero.
    """

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.output_size = hidden_size
        self.cell = nn.GRUCell(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> GRUState:
        """Zeros, float32."""
        return GRUState(torch.zeros(batch_size, self.output_size, device=self.cell.weight_hh.device))

    def forward(self, inputs: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        """inputs [B, input_size], state -> output [B, hidden_size], next state."""
        h = self.cell(inputs, state.h)
        return h, GRUState(h)
