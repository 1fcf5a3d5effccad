"""Gated recurrent unit (Cho et al. 2014), in the form with the reset gate after the recurrent product."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import linear, tanh
from .core import Core, at_least_one, full_precision
from .gates import remember
from .recurrence import Recurrence, Tape, run, run_once


class GRUState(NamedTuple):
    """h [B, hidden_size]: the last output."""

    h: Tensor


class GRU(Core):
    """One layer of gated recurrent units.

    x_r, x_z, x_n = W_x x + b_x,   h_r, h_z, h_n = W_h h + b_h      three blocks of hidden_size rows, in this order
    r = sigmoid(x_r + h_r),  z = sigmoid(x_z + h_z),  n = tanh(x_n + r * h_n)
    h' = n + z * (h - n)                                            the output

    Parameters, their order and their initialisation are those of `torch.nn.GRUCell`. The first state is zero.
    With a `memory_span` above 0 the units at first forget at rates spread over so many steps (b_z = `gate_biases`).
    Differentiable once.
    """

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__()
        at_least_one(hidden_size=hidden_size)
        self.input_size, self.output_size = input_size, hidden_size
        self.cell = nn.GRUCell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> GRUState:
        """Zeros."""
        return GRUState(self.cell.weight_hh.new_zeros(batch_size, self.output_size))

    @full_precision
    def forward(self, inputs: Tensor, state: GRUState) -> tuple[Tensor, GRUState]:
        """inputs [B, input_size], state -> output [B, hidden_size], next state."""
        state = run_once(GRUSteps, self._tensors(inputs.unsqueeze(0)), state)
        return state.h, state

    @full_precision
    def unroll(
        self, inputs: Tensor, reset: Tensor, state: GRUState, bptt_length: int | None = None
    ) -> tuple[Tensor, GRUState, None]:
        """As `Core.unroll`; W_x x of all steps is one product, and so is the gradient of W_h."""
        initial = self.initial_state(inputs.shape[1])
        return *run(GRUSteps, self._tensors(inputs), state, initial, reset, bptt_length), None

    def _tensors(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from_input = linear(inputs, self.cell.weight_ih, self.cell.bias_ih)
        return from_input, self.cell.weight_hh, self.cell.bias_hh


class GRUSteps(Recurrence):
    """The equations of GRU and their gradient; from_input [T, B, 3 H] = W_x x + b_x, weight [3 H, H], bias [3 H]."""

    def __init__(self, from_input: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.from_input, self.weight, self.bias = from_input, weight, bias
        self.grad_from_input = torch.empty_like(from_input)
        self.grad_from_state = torch.empty_like(from_input)
        self.inputs: list[Tensor] = []

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """h [B, H] before step t -> after it."""
        (h,) = state
        size = h.shape[1]
        from_input, from_state = self.from_input[t], linear(h, self.weight, self.bias)
        gates = (from_input[:, : 2 * size] + from_state[:, : 2 * size]).sigmoid_()
        r, z = gates.chunk(2, 1)
        h_n = from_state[:, 2 * size :]
        n = tanh(torch.addcmul(from_input[:, 2 * size :], r, h_n))
        tape.save(h, gates, h_n, n)
        return (torch.lerp(n, h, z),)

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Gradient of h after step t -> before it; those of the pre-activations stay until `gradients`."""
        (grad_h,) = grads
        h, gates, h_n, n = tape.take(4)
        r, z = gates.chunk(2, 1)
        through_z = grad_h * z
        grad_n = torch.ops.aten.tanh_backward(grad_h - through_z, n)
        grad_gates = torch.ops.aten.sigmoid_backward(torch.cat([grad_n * h_n, grad_h * (h - n)], 1), gates)
        torch.cat([grad_gates, grad_n], 1, out=self.grad_from_input[t])
        grad_state = self.grad_from_state[t]
        torch.cat([grad_gates, grad_n * r], 1, out=grad_state)
        self.inputs.append(h)
        return (through_z + linear(grad_state, self.weight.t()),)

    def gradients(self) -> Sequence[Tensor]:
        """Of from_input, W_h and b_h: one product over all steps."""
        grad = self.grad_from_state.flatten(0, 1)
        h = torch.stack(self.inputs[::-1]).flatten(0, 1)
        return self.grad_from_input, linear(grad.t(), h.t()), grad.sum(0)
