"""Small baselines: Elman network, MGU, IndRNN and a stack of frames, as in POPGym, and a network without memory."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import Linear, linear
from .core import Core, Projected, Unrolled
from .parts.bounds import bounded


class SimpleState(NamedTuple):
    """h [B, hidden_size]: the last output (IndRNN: of every layer, [B, num_layers, hidden_size])."""

    h: Tensor


class Frames(NamedTuple):
    """past [B, num_frames - 1, input_size]: the last inputs, the newest first."""

    past: Tensor


class FeedforwardState(NamedTuple):
    """Empty state: no leaves."""


class Simple(Projected):
    """Core whose `from_input` maps its inputs and whose state is a zero vector at first."""

    from_input: nn.Linear

    def initial_state(self, batch_size: int) -> Any:
        return SimpleState(self.from_input.weight.new_zeros(batch_size, self.output_size))

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.from_input.weight, self.from_input.bias)


class Elman(Simple):
    """Elman network (1990): h_t = tanh(W x_t + b + U h_{t-1}), the output. U is initially orthogonal; h_{-1} = 0."""

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.from_input = nn.Linear(input_size, hidden_size)
        self.recurrent = nn.Parameter(nn.init.orthogonal_(torch.empty(hidden_size, hidden_size)))

    def _step(self, x: Tensor, state: SimpleState) -> tuple[Tensor, SimpleState]:
        h = torch.tanh(torch.addmm(x, state.h, self.recurrent.t()))
        return h, SimpleState(h)


class MGU(Simple):
    """Minimal gated unit (Zhou et al. 2016, equations 5 to 7): one gate forgets and resets.

    f = sigmoid(W_f x_t + b_f + U_f h_{t-1})
    n = tanh(W_n x_t + b_n + U_n (f * h_{t-1}))
    h_t = (1 - f) * h_{t-1} + f * n                       the output; h_{-1} = 0
    """

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.from_input = nn.Linear(input_size, 2 * hidden_size)  # rows: f, n
        self.forget = nn.Linear(hidden_size, hidden_size, bias=False)
        self.candidate = nn.Linear(hidden_size, hidden_size, bias=False)

    def _step(self, x: Tensor, state: SimpleState) -> tuple[Tensor, SimpleState]:
        x_f, x_n = x.chunk(2, 1)
        f = torch.sigmoid(torch.addmm(x_f, state.h, self.forget.weight.t()))
        n = torch.tanh(torch.addmm(x_n, f * state.h, self.candidate.weight.t()))
        h = torch.lerp(state.h, n, f)
        return h, SimpleState(h)


class IndRNN(Core):
    """IndRNN: layers of independent units (Li et al. 2018).

    h^l_t = relu(W^l x^l_t + b^l + w^l * h^l_{t-1})    (equation 4)

    x^1 is the input, x^{l+1} = h^l, and the output is h of the last layer. |w| is at most 1 (section 4.1); initially,
    w is uniform in [0, 1]. Two layers with nothing between them are our choice. h_{-1} = 0.
    """

    def __init__(self, input_size: int, hidden_size: int = 256, num_layers: int = 2) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.layers = nn.ModuleList(nn.Linear(hidden_size if n else input_size, hidden_size) for n in range(num_layers))
        self.recurrent = nn.Parameter(torch.rand(num_layers, hidden_size))

    def initial_state(self, batch_size: int) -> SimpleState:
        return SimpleState(self.recurrent.new_zeros(batch_size, *self.recurrent.shape))

    def forward(self, inputs: Tensor, state: SimpleState) -> tuple[Tensor, SimpleState]:
        weights = bounded(self.recurrent, -1.0, 1.0)
        states: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            inputs = F.relu(torch.addcmul(layer(inputs), weights[index], state.h[:, index]))
            states.append(inputs)
        return inputs, SimpleState(torch.stack(states, 1))


class FrameStack(Core):
    """Frame stack: relu(W [x_t ; x_{t-1} ; ...] + b) of the last `num_frames` inputs. No recurrence.

    Inputs before the start of the episode are zeros. This is a baseline with a short, exact memory.
    """

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 256, num_frames: int = 4) -> None:
        super().__init__()
        self.input_size, self.output_size, self.num_frames = input_size, hidden_size, num_frames
        self.layer = nn.Linear(num_frames * input_size, hidden_size)

    def initial_state(self, batch_size: int) -> Frames:
        return Frames(self.layer.weight.new_zeros(batch_size, self.num_frames - 1, self.input_size))

    def forward(self, inputs: Tensor, state: Frames) -> tuple[Tensor, Frames]:
        frames = torch.cat([inputs.unsqueeze(1), state.past], 1)
        return F.relu(self.layer(frames.flatten(1))), Frames(frames[:, :-1])


class Feedforward(Core):
    """Control without memory, which must fail at every memory task: one hidden layer, y = relu(W x + b)."""

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.hidden = Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> FeedforwardState:
        return FeedforwardState()

    def forward(self, inputs: Tensor, state: FeedforwardState) -> tuple[Tensor, FeedforwardState]:
        return self.hidden(inputs).relu(), state

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: Any, bptt_length: int | None) -> Unrolled:
        """Compute all T steps at once: without a state, there is nothing to reset or truncate."""
        return self.hidden(inputs).relu(), state, None
