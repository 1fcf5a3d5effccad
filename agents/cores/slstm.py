"""sLSTM (Beck et al. 2024, "xLSTM: Extended long short-term memory", section 2.2): exponential gates."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .simple import Simple

EMPTY = -1e4  # Initial m: the logarithm of a value that is 0 in every precision


class SLSTMState(NamedTuple):
    """Cell c, normalizer n, output h and stabilizer m, [B, hidden_size] each."""

    c: Tensor
    n: Tensor
    h: Tensor
    m: Tensor


class SLSTM(Simple):
    """sLSTM of xLSTM: one layer of LSTM units with exponential gates; units are connected only within their head.

        z', i', f', o' = W x_t + R h_{t-1} + b                 four blocks of rows; R block-diagonal, num_heads blocks
        z = tanh(z'),  o = sigmoid(o'),  i = exp(i'),  f = sigmoid(f')                        (equations 11 to 14)
        m_t = max(log f + m_{t-1}, i')                                                        (equation 15)
        c_t = exp(log f + m_{t-1} - m_t) c_{t-1} + exp(i' - m_t) z                            (equations 8, 16, 17)
        n_t = exp(log f + m_{t-1} - m_t) n_{t-1} + exp(i' - m_t)                              (equation 9)
        h_t = o * c_t / n_t                                                                   (equation 10)

    The output is h. After the first step, n is at least 1. Choices left open by the paper: f is a sigmoid; c, n
    and h start at zero and m at EMPTY, so that the first step's input counts in full; no norm, convolution or
    projection around the cell, so that it can replace an LSTM. Initially, b_f is evenly spread from 3 to 6 within
    each head (in the released code, the spread depends on the layer's depth).
    """

    def __init__(self, input_size: int, hidden_size: int = 128, num_heads: int = 4) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"num_heads is {num_heads}; allowed: divisors of hidden_size {hidden_size}")
        self.input_size, self.output_size, self.num_heads = input_size, hidden_size, num_heads
        size = hidden_size // num_heads
        self.from_input = nn.Linear(input_size, 4 * hidden_size)
        self.recurrent = nn.Parameter(torch.empty(num_heads, size, 4 * size).uniform_(-(size**-0.5), size**-0.5))
        with torch.no_grad():
            self.from_input.bias.zero_()
            spread = torch.linspace(3, 6, size).repeat(num_heads)
            self.from_input.bias[2 * hidden_size : 3 * hidden_size] = spread

    def initial_state(self, batch_size: int) -> SLSTMState:
        """Return zeros and a stabilizer that represents an empty sum."""
        c, n, h, m = self.recurrent.new_zeros(4, batch_size, self.output_size)
        return SLSTMState(c.clone(), n.clone(), h.clone(), m + EMPTY)

    def _step(self, x: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
        """Apply the equations to x = W x_t + b [B, 4 hidden_size]."""
        heads = state.h.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        mixed = torch.bmm(heads, self.recurrent)  # [heads, B, 4 size]
        from_h = mixed.unflatten(2, (4, -1)).permute(1, 2, 0, 3).flatten(1)
        cell, log_input, forget, output = (x + from_h).chunk(4, 1)
        log_forget = F.logsigmoid(forget)
        m = torch.maximum(log_forget + state.m, log_input)
        decay, new = (log_forget + state.m - m).exp(), (log_input - m).exp()
        c = decay * state.c + new * torch.tanh(cell)
        n = decay * state.n + new
        h = torch.sigmoid(output) * c / n
        return h, SLSTMState(c, n, h, m)
