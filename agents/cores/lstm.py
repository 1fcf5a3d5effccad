"""LSTM."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Affine, linear
from .core import Axis, Projected, Step, Unrolled
from .fast import gated as fast
from .fast.routes import stands_for
from .gru import remember


class LSTMState(NamedTuple):
    h: Tensor  # the last output [B, hidden_size]; of ConvLSTM [B, height * width, hidden_channels]
    c: Tensor  # the cells, likewise


class Cell(nn.LSTMCell):
    """torch's LSTM cell with explicit equations, since torch's operation has no rule for `torch.func.vmap`."""

    def forward(self, input: Tensor, hx: LSTMState) -> LSTMState:  # pyright: ignore[reportIncompatibleMethodOverride]
        gates = linear(input, self.weight_ih, self.bias_ih) + linear(hx[0], self.weight_hh, self.bias_hh)
        return lstm_step(gates, hx[1])


class LSTM(Projected):
    """LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000): one layer.

    i, f, g, o = W_x x + b_x + W_h h + b_h        four blocks of hidden_size rows, in this order
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h' = sigmoid(o) * tanh(c')                    the output

    Parameters, their order and their initialization are those of `torch.nn.LSTMCell`; `memory_span`: see `gate_biases`
    (of f). The initial state is zero.
    """

    parts_of_state = (Axis("unit", "h", 1), Axis("unit", "c", 1))

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = Cell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = self.cell.weight_hh.new_zeros(batch_size, self.output_size)
        return LSTMState(zeros, zeros.clone())

    def forward(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        state = self.cell(inputs, state)
        return state.h, state

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is LSTM and stands_for(self, inputs)

    def fast_step(self, batch_size: int) -> Step | None:
        cell = self.cell
        if not self.compiles(cell.weight_hh):
            return None
        gates, steps = Affine(cell.weight_ih, cell.bias_ih + cell.bias_hh), fast.lstm_steps(cell.weight_hh, batch_size)

        def step(inputs: Tensor, reset: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
            after = LSTMState(*steps(gates(inputs.numpy()), reset.numpy(), *state))
            return after.h, after

        return step

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: LSTMState, bptt_length: int | None) -> Unrolled:
        outputs, *last = fast.run(self._project(inputs), self.cell.weight_hh, *state, reset, bptt_length)
        return outputs, LSTMState(*last), None

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.cell.weight_ih, self.cell.bias_ih + self.cell.bias_hh)

    def _step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        after = lstm_step(torch.addmm(x, state.h, self.cell.weight_hh.t()), state.c)
        return after.h, after


def lstm_step(gates: Tensor, c: Tensor) -> LSTMState:
    """Return the next state from i, f, g, o [..., 4 H] before their nonlinearities and from the cells [..., H]."""
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return LSTMState(torch.sigmoid(o) * torch.tanh(c), c)
