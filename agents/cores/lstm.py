"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .core import Core


class LSTMState(NamedTuple):
    """h [B, hidden_size]: the last output; c [B, hidden_size]: the cells."""

    h: Tensor
    c: Tensor


class LSTM(Core):
    """One layer of LSTM.

    i, f, g, o = W_x x + b_x + W_h h + b_h        four blocks of hidden_size rows, in this order
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h' = sigmoid(o) * tanh(c')                    the output

    Parameters, their order and their initialisation are those of `torch.nn.LSTMCell`. The first state is zero.
    """

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.output_size = hidden_size
        self.cell = nn.LSTMCell(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros, float32."""
        zeros = torch.zeros(batch_size, self.output_size, device=self.cell.weight_hh.device)
        return LSTMState(zeros, zeros.clone())

    def forward(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """inputs [B, input_size], state -> output [B, hidden_size], next state."""
        h, c = self.cell(inputs, (state.h, state.c))
        return h, LSTMState(h, c)
