"""Initial memory span of gated cores (Tallec & Ollivier 2018, "Can recurrent neural networks warp time?").

A unit that retains the share sigmoid(b) per step forgets within about 1 + e^b steps: with torch's biases near zero, two
steps. These biases give each unit a different span. The source also closes an LSTM's input gate, b_i = -b_f. This
module does not, since writes would shrink as the span grows: in a T-maze with 60 steps of limbo, a cue would change the
outputs at the choice by 0.03 instead of 0.14.
"""

import torch
from torch import Tensor, nn

SHORTEST = 3  # Smallest span for which biases exist


def gate_biases(units: int, memory_span: int) -> Tensor:
    """b = log(u), u ~ U(1, memory_span - 1), float32 [units]: spans from 2 to memory_span steps. Raises ValueError for
    a span below SHORTEST."""
    if memory_span < SHORTEST:
        raise ValueError(f"memory_span is {memory_span}; allowed: 0 (torch's biases) or at least {SHORTEST} steps")
    return torch.empty(units).uniform_(1, memory_span - 1).log_()


def remember(cell: nn.LSTMCell | nn.GRUCell, memory_span: int) -> None:
    """Bias the gate that forgets: the second block of rows in both of torch's cells (f of i, f, g, o; z of r, z, n). 0
    keeps torch's biases."""
    if memory_span == 0:
        return
    rows = slice(cell.hidden_size, 2 * cell.hidden_size)
    with torch.no_grad():
        cell.bias_ih[rows] = gate_biases(cell.hidden_size, memory_span)
        cell.bias_hh[rows] = 0.0
