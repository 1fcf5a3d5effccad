"""GRU, and the initial memory span of gated units."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import linear
from .core import Axis, HiddenState, Projected, Unrolled, under_torch_func
from .fast import bf16
from .fast import gated as fast
from .fast.routes import stands_for

SHORTEST = 3  # Smallest memory span for which biases exist


class GRU(Projected):
    """GRU (Cho et al. 2014): one layer, with the reset gate after the recurrent matrix multiplication.

    x_r, x_z, x_n = W_x x + b_x,   h_r, h_z, h_n = W_h h + b_h      three blocks of hidden_size rows, in this order
    r = sigmoid(x_r + h_r),  z = sigmoid(x_z + h_z),  n = tanh(x_n + r * h_n)
    h' = n + z * (h - n)                                            the output

    Parameters, their order and their initialization are those of `torch.nn.GRUCell`; `memory_span`: see `gate_biases`
    (of z). The initial state is zero.
    """

    parts_of_state = (Axis("unit", "h", 1),)

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.GRUCell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> HiddenState:
        return HiddenState(self.cell.weight_hh.new_zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        if under_torch_func() or bf16.active():  # GRUCell supports neither vmap nor rounded factors
            return super().forward(inputs, state)
        h = self.cell(inputs, state.h)
        return h, HiddenState(h)

    def compiles(self, inputs: Tensor) -> bool:
        return type(self) is GRU and stands_for(self, inputs)

    def unroll_compiled(self, inputs: Tensor, reset: Tensor, state: HiddenState, bptt_length: int | None) -> Unrolled:
        cell = self.cell
        from_h, inner = cell.bias_hh.split([2 * self.output_size, self.output_size])
        gates = linear(inputs, cell.weight_ih, cell.bias_ih + F.pad(from_h, (0, self.output_size)))
        none = state.h.new_empty(len(state.h), 0)
        outputs, h, _ = fast.run(gates, cell.weight_hh, state.h, none, reset, bptt_length, inner)
        return outputs, HiddenState(h), None

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.cell.weight_ih, self.cell.bias_ih)

    def _step(self, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        size = self.output_size
        from_h = linear(state.h, self.cell.weight_hh, self.cell.bias_hh)
        r, z = torch.sigmoid(x[:, : 2 * size] + from_h[:, : 2 * size]).chunk(2, 1)
        n = torch.tanh(x[:, 2 * size :] + r * from_h[:, 2 * size :])
        h = torch.lerp(n, state.h, z)
        return h, HiddenState(h)


def gate_biases(units: int, memory_span: int) -> Tensor:
    """b = log(u), u ~ U(1, memory_span - 1), float32 [units], so that units, which retain the share sigmoid(b) per
    step, forget within 2 to memory_span steps (Tallec & Ollivier 2018, "Can recurrent neural networks warp time?").
    Unlike there, an LSTM's input gate keeps its bias, since writes would shrink as the span grows."""
    if memory_span < SHORTEST:
        raise ValueError(f"memory_span is {memory_span}; allowed: 0 (torch's biases) or at least {SHORTEST} steps")
    return torch.empty(units).uniform_(1, memory_span - 1).log_()


def remember(cell: nn.LSTMCell | nn.GRUCell, memory_span: int) -> None:
    """Bias the gate that forgets: the second block of rows in both of torch's cells. 0 keeps torch's biases."""
    if memory_span == 0:
        return
    rows = slice(cell.hidden_size, 2 * cell.hidden_size)
    with torch.no_grad():
        cell.bias_ih[rows] = gate_biases(cell.hidden_size, memory_span)
        cell.bias_hh[rows] = 0.0
