"""Gated recurrent unit (Cho et al. 2014), in the form with the reset gate after the recurrent matrix multiplication."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import bf16
from ..kernels import linear
from .core import Axis, Projected, Unrolled, under_torch_func
from .fast import gated as fast
from .fast.routes import stands_for
from .parts.gates import remember


class GRUState(NamedTuple):
    """h [B, hidden_size]: the last output."""

    h: Tensor


class GRU(Projected):
    """GRU: one layer of gated recurrent units.

    x_r, x_z, x_n = W_x x + b_x,   h_r, h_z, h_n = W_h h + b_h      three blocks of hidden_size rows, in this order
    r = sigmoid(x_r + h_r),  z = sigmoid(x_z + h_z),  n = tanh(x_n + r * h_n)
    h' = n + z * (h - n)                                            the output

    Parameters, their order and their initialization are those of `torch.nn.GRUCell`. The initial state is zero.
    A `memory_span` above 0 spreads the initial memory spans of the units up to that many steps (b_z = `gate_biases`).
    """

    parts_of_state = (Axis("unit", "h", 1),)

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.cell = nn.GRUCell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> GRUState:
        return GRUState(self.cell.weight_hh.new_zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        if under_torch_func() or bf16.active():  # GRUCell supports neither vmap nor rounded factors
            return super().forward(inputs, state)
        h = self.cell(inputs, state.h)
        return h, GRUState(h)

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.cell.weight_ih, self.cell.bias_ih)

    def _step(self, x: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        """Apply the equations to W_x x + b_x [B, 3 hidden_size]."""
        size = self.output_size
        from_h = linear(state.h, self.cell.weight_hh, self.cell.bias_hh)
        r, z = torch.sigmoid(x[:, : 2 * size] + from_h[:, : 2 * size]).chunk(2, 1)
        n = torch.tanh(x[:, 2 * size :] + r * from_h[:, 2 * size :])
        h = torch.lerp(n, state.h, z)
        return h, GRUState(h)

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is GRU and stands_for(self, inputs)

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: GRUState, bptt_length: int | None) -> Unrolled:
        cell = self.cell
        from_h, inner = cell.bias_hh.split([2 * self.output_size, self.output_size])
        gates = linear(inputs, cell.weight_ih, cell.bias_ih + F.pad(from_h, (0, self.output_size)))
        none = state.h.new_empty(len(state.h), 0)
        outputs, h, _ = fast.run(gates, cell.weight_hh, state.h, none, reset, bptt_length, inner)
        return outputs, GRUState(h), None
