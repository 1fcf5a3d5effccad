"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import native
from ..aside import Later, aside
from ..kernels import add_linear, linear, tanh
from . import lstm_native
from .core import Core, at_least_one, full_precision
from .gates import remember
from .recurrence import Recurrence, Tape, run, run_once
from .taped import ROWS_AT_ONCE


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
    With a `memory_span` above 0 the cells at first forget at rates spread over so many steps (b_f = `gate_biases`).
    Differentiable once.
    """

    def __init__(self, input_size: int, hidden_size: int = 256, memory_span: int = 0) -> None:
        super().__init__()
        at_least_one(hidden_size=hidden_size)
        self.input_size, self.output_size = input_size, hidden_size
        self.cell = nn.LSTMCell(input_size, hidden_size)
        remember(self.cell, memory_span)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros."""
        zeros = self.cell.weight_hh.new_zeros(batch_size, self.output_size)
        return LSTMState(zeros, zeros.clone())

    @full_precision
    def forward(self, inputs: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """inputs [B, input_size], state -> output [B, hidden_size], next state."""
        if native.suits(inputs):
            no_reset = torch.zeros(1, len(inputs), dtype=torch.bool)
            _, h, c = lstm_native.run(*self._tensors(inputs.unsqueeze(0)), *state, no_reset, None)
            return h, LSTMState(h, c)
        state = run_once(LSTMSteps, self._tensors(inputs.unsqueeze(0)), state)
        return state.h, state

    @full_precision
    def unroll(
        self, inputs: Tensor, reset: Tensor, state: LSTMState, bptt_length: int | None = None
    ) -> tuple[Tensor, LSTMState, None]:
        """As `Core.unroll`; W_x x of all steps is one product, the gradient of W_h a few."""
        if native.suits(inputs):
            outputs, *last = lstm_native.run(*self._tensors(inputs), *state, reset, bptt_length)
            return outputs, LSTMState(*last), None
        initial = self.initial_state(inputs.shape[1])
        return *run(LSTMSteps, self._tensors(inputs), state, initial, reset, bptt_length), None

    def _tensors(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        bias = self.cell.bias_ih + self.cell.bias_hh
        return linear(inputs, self.cell.weight_ih, bias), self.cell.weight_hh


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a * b into a slice."""
    if torch.compiler.is_compiling():
        out.copy_(a * b)  # torch.compile knows no `out` that has gaps
    else:
        torch.mul(a, b, out=out)


class LSTMSteps(Recurrence):
    """The equations of LSTM and their gradient; from_input [T, B, 4 H] = W_x x + b, weight [4 H, H] = W_h."""

    def __init__(self, from_input: Tensor, weight: Tensor) -> None:
        self.from_input, self.weight = from_input, weight
        self.grad_gates = torch.empty_like(from_input)
        self.inputs: list[Tensor] = []
        """Of the latest calls of `backward`, whose share `grad_weight` does not hold yet."""
        self.grad_weight: Later[Tensor] | None = None

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """h, c [B, H] before step t -> h, c after it."""
        h, c = state
        gates = add_linear(self.from_input[t], self.seen(h), self.weight)
        # One sigmoid for all four: tanh(g) = 2 sigmoid(2 g) - 1.
        g = gates.chunk(4, 1)[2]
        g.add_(g)
        i, f, g, o = gates.sigmoid_().chunk(4, 1)
        g.add_(g).sub_(1)
        new_c = torch.mul(f, c).addcmul_(i, g)
        squashed = tanh(new_c)
        tape.save(h, c, gates, squashed)
        return o * squashed, new_c

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Gradients of h, c after step t -> before it; those of the gates stay until `gradients`."""
        grad_h, grad_c = grads
        h, c, gates, squashed = tape.take(4)
        i, f, g, o = gates.chunk(4, 1)
        grad_c = grad_c + torch.ops.aten.tanh_backward(grad_h * o, squashed)
        grad = self.grad_gates[t]
        grad_i, grad_f, grad_g, grad_o = grad.chunk(4, 1)
        multiply(grad_c, g, grad_i)
        multiply(grad_c, c, grad_f)
        multiply(grad_h, squashed, grad_o)
        through_tanh = torch.ops.aten.tanh_backward(grad_c * i, g)
        torch.ops.aten.sigmoid_backward.grad_input(grad, gates, grad_input=grad)
        grad_g.copy_(through_tanh)
        self.inputs.append(h)
        if t == 0 or len(self.inputs) * len(h) >= ROWS_AT_ONCE:
            self.grad_weight = aside(self._added, self.grad_weight, t, self.inputs)
            self.inputs = []
        return self.seen_backward(linear(grad, self.weight.t())), grad_c * f

    def gradients(self) -> Sequence[Tensor]:
        """Of from_input and of W_h."""
        assert self.grad_weight is not None, "`backward` reached step 0"
        return self.grad_gates, self.grad_weight.result()

    def _added(self, sum_: Later[Tensor] | None, t: int, inputs: list[Tensor]) -> Tensor:
        """The gradient of W_h with the share of the steps from t on, whose inputs come last first."""
        seen = self.seen(torch.cat(inputs[::-1]))
        grad = self.grad_gates[t : t + len(inputs)].flatten(0, 1)
        if sum_ is None:
            return linear(grad.t(), seen.t())
        return add_linear(sum_.result(), grad.t(), seen.t())

    def seen(self, h: Tensor) -> Tensor:
        """What W_h is applied to: h itself. Rows [R, H] -> [R, in]."""
        return h

    def seen_backward(self, grad: Tensor) -> Tensor:
        """[R, in] -> [R, H]."""
        return grad
