"""Cores that are each wrong in one way, and a correct one that they are made from."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.agents.cores import Core
from engram.agents.cores.core import unroll_step_by_step


class ToyState(NamedTuple):
    h: Tensor


class Toy(Core):
    """A recurrent layer with a trained initial state: h' = tanh(W [x ; h])."""

    def __init__(self, input_size, hidden_size=12):
        super().__init__()
        self.output_size = hidden_size
        self.layer = nn.Linear(input_size + hidden_size, hidden_size)
        self.first = nn.Parameter(torch.randn(hidden_size))

    def initial_state(self, batch_size):
        return ToyState(self.first.repeat(batch_size, 1))

    def forward(self, inputs, state):
        h = torch.tanh(self.layer(torch.cat([inputs, state.h], 1)))
        return h, ToyState(h)


class NoNamedTuple(Toy):
    """The state is a plain tuple."""

    def initial_state(self, batch_size):
        return tuple(super().initial_state(batch_size))

    def forward(self, inputs, state):
        h, _ = super().forward(inputs, ToyState(*state))
        return h, (h,)


class OtherUnroll(Toy):
    """The unroll forgets one input."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        inputs = torch.cat([inputs[:-1], torch.zeros_like(inputs[-1:])])
        return unroll_step_by_step(self, inputs, reset, state, bptt_length)


class ZeroAtStart(Toy):
    """The unroll begins from the initial state whatever it is given, as if every piece were a new episode."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        return unroll_step_by_step(self, inputs, reset, self.initial_state(inputs.shape[1]), bptt_length)


def with_multiplied_reset(self, inputs, reset, state, bptt_length=None):
    """An unroll that resets by multiplication with zero."""
    outputs = []
    for t in range(len(inputs)):
        if bptt_length is not None and t and t % bptt_length == 0:
            state = ToyState(state.h.detach())
        state = ToyState(state.h * (~reset[t]).unsqueeze(1))
        output, state = self(inputs[t], state)
        outputs.append(output)
    return torch.stack(outputs), state, None


class MultipliedReset(Toy):
    """The unroll resets by multiplication with zero: right only where the initial state is zero and nothing is nan."""

    unroll = with_multiplied_reset


class MultipliedResetFromZero(Toy):
    """The same with a zero initial state: nothing shows but nan."""

    unroll = with_multiplied_reset

    def initial_state(self, batch_size):
        return ToyState(0 * self.first.repeat(batch_size, 1))


class LeakyReset(Toy):
    """Keeps a thousandth of the state at a reset."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        outputs = []
        for t in range(len(inputs)):
            if bptt_length is not None and t and t % bptt_length == 0:
                state = ToyState(state.h.detach())
            fresh = self.initial_state(inputs.shape[1]).h
            state = ToyState(torch.where(reset[t].unsqueeze(1), fresh + 1e-3 * state.h, state.h))
            output, state = self(inputs[t], state)
            outputs.append(output)
        return torch.stack(outputs), state, None


class SecretState(Toy):
    """Remembers in itself what should be in the state."""

    def forward(self, inputs, state):
        before = getattr(self, "before", None)
        if before is None or before.shape != state.h.shape or before.dtype != state.h.dtype:
            before = state.h.detach()
        output, state = super().forward(inputs, ToyState(state.h + 0.1 * before))
        self.before = output.detach()
        return output, state


class LeakingRows(Toy):
    """A batch statistic mixes the rows."""

    def forward(self, inputs, state):
        h, _ = super().forward(inputs - inputs.mean(0), state)
        return h, ToyState(h)


class RowsByGradient(Toy):
    """The rows mix in the gradient alone."""

    def forward(self, inputs, state):
        mean = inputs.mean(0)
        return super().forward(inputs + (mean - mean.detach()), state)


class IgnoresState(Toy):
    """Has a state and does not look at it."""

    def forward(self, inputs, state):
        return super().forward(inputs, ToyState(torch.zeros_like(state.h)))


class Detached(Toy):
    """No gradient from a step to the one before."""

    def forward(self, inputs, state):
        return super().forward(inputs, ToyState(state.h.detach()))


class NeverCut(Toy):
    """The unroll takes no notice of bptt_length."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        return unroll_step_by_step(self, inputs, reset, state, None)


class CutTooOften(Toy):
    """Cuts the gradient in the middle of a piece."""

    def unroll(self, inputs, reset, state, bptt_length=None):
        return unroll_step_by_step(self, inputs, reset, state, bptt_length and -(-bptt_length // 2))


class CountedState(NamedTuple):
    h: Tensor
    steps: Tensor


class DetachedAtTimes(Toy):
    """No gradient from every seventh step to the one before."""

    def initial_state(self, batch_size):
        return CountedState(super().initial_state(batch_size).h, torch.zeros(batch_size, dtype=torch.int64))

    def forward(self, inputs, state):
        cut = (state.steps % 7 == 0).unsqueeze(1)
        h, _ = super().forward(inputs, ToyState(torch.where(cut, state.h.detach(), state.h)))
        return h, CountedState(h, state.steps + 1)


class SharedLoss(Toy):
    """Every environment gets the mean of all environments' losses."""

    def auxiliary_loss(self, state):
        return state.h.square().mean().expand(len(state.h))


class IdleParameter(Toy):
    def __init__(self, input_size):
        super().__init__(input_size)
        self.unused = nn.Parameter(torch.zeros(3))


class SharedLayers(Toy):
    """The same layer twice where two were meant."""

    def __init__(self, input_size):
        super().__init__(input_size)
        self.layers = nn.ModuleList([nn.Linear(12, 12)] * 2)

    def forward(self, inputs, state):
        h, _ = super().forward(inputs, state)
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return h, ToyState(h)


class HiddenConstant(Toy):
    """A random constant that is not among the weights."""

    def __init__(self, input_size):
        super().__init__(input_size)
        self.register_buffer("constant", torch.randn(12), persistent=False)

    def forward(self, inputs, state):
        h, _ = super().forward(inputs, state)
        return h + self.constant, ToyState(h)


class Unpicklable(Toy):
    """The state is a type that only exists inside a function."""

    def initial_state(self, batch_size):
        class Local(NamedTuple):
            h: Tensor

        self.state_type = getattr(self, "state_type", Local)
        return self.state_type(super().initial_state(batch_size).h)

    def forward(self, inputs, state):
        h, _ = super().forward(inputs, state)
        return h, type(state)(h)


class OtherWhenActing(Toy):
    """Does something else where no gradient is wanted."""

    def forward(self, inputs, state):
        h, _ = super().forward(inputs if torch.is_grad_enabled() else 0.9 * inputs, state)
        return h, ToyState(h)


class StaleWhenActing(Toy):
    """Acts with the first weights that it acted with, however they change."""

    def forward(self, inputs, state):
        if torch.is_grad_enabled():
            return super().forward(inputs, state)
        if not hasattr(self, "weight"):
            self.weight = self.layer.weight.clone()
        h = torch.tanh(F.linear(torch.cat([inputs, state.h], 1), self.weight, self.layer.bias))
        return h, ToyState(h)


class FastStepWithoutReset(Toy):
    """Its step for acting takes no notice of resets."""

    unroll_at_once = unroll_step_by_step

    def fast_step(self, batch_size):
        return lambda inputs, reset, state: self(inputs, state)


class Explodes(Toy):
    """Adds up without bound."""

    def forward(self, inputs, state):
        h = 1.1 * state.h + super().forward(inputs, state)[0]
        return torch.tanh(h), ToyState(h)


class Forgets(Toy):
    """Keeps so little of the past that nothing can be learned from it."""

    def forward(self, inputs, state):
        return super().forward(inputs, ToyState(1e-4 * state.h))


class Raises(Toy):
    def unroll(self, inputs, reset, state, bptt_length=None):
        raise IndexError("there is no slot 7")
