"""Small cores: Elman network, MGU, IndRNN and a stack of frames, as in POPGym, sLSTM, and a network without memory."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import Linear, linear
from .core import Core, HiddenState, Projected, Unrolled

EMPTY = -1e4  # Initial m of sLSTM: the logarithm of a value that is 0 in every precision


class Simple(Projected):
    """Core whose `from_input` maps its inputs and whose state is a zero vector at first."""

    from_input: nn.Linear

    def initial_state(self, batch_size: int) -> Any:
        return HiddenState(self.from_input.weight.new_zeros(batch_size, self.output_size))

    def _project(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.from_input.weight, self.from_input.bias)


class Elman(Simple):
    """Elman network (1990): h_t = tanh(W x_t + b + U h_{t-1}), the output. U is initially orthogonal; h_{-1} = 0."""

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__(input_size, hidden_size)
        self.from_input = nn.Linear(input_size, hidden_size)
        self.recurrent = nn.Parameter(nn.init.orthogonal_(torch.empty(hidden_size, hidden_size)))

    def _step(self, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        h = torch.tanh(torch.addmm(x, state.h, self.recurrent.t()))
        return h, HiddenState(h)


class MGU(Simple):
    """Minimal gated unit (Zhou et al. 2016, equations 5 to 7): one gate forgets and resets.

    f = sigmoid(W_f x_t + b_f + U_f h_{t-1})
    n = tanh(W_n x_t + b_n + U_n (f * h_{t-1}))
    h_t = (1 - f) * h_{t-1} + f * n                       the output; h_{-1} = 0
    """

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__(input_size, hidden_size)
        self.from_input = nn.Linear(input_size, 2 * hidden_size)  # rows: f, n
        self.forget = nn.Linear(hidden_size, hidden_size, bias=False)
        self.candidate = nn.Linear(hidden_size, hidden_size, bias=False)

    def _step(self, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        x_f, x_n = x.chunk(2, 1)
        f = torch.sigmoid(torch.addmm(x_f, state.h, self.forget.weight.t()))
        n = torch.tanh(torch.addmm(x_n, f * state.h, self.candidate.weight.t()))
        h = torch.lerp(state.h, n, f)
        return h, HiddenState(h)


class SLSTMState(NamedTuple):
    c: Tensor  # cells, normalizer, output and stabilizer [B, hidden_size]
    n: Tensor
    h: Tensor
    m: Tensor


class SLSTM(Simple):
    """sLSTM (Beck et al. 2024, "xLSTM: Extended long short-term memory", section 2.2): exponential gates.

        z', i', f', o' = W x_t + R h_{t-1} + b                 four blocks of rows; R block-diagonal, num_heads blocks
        z = tanh(z'),  o = sigmoid(o'),  i = exp(i'),  f = sigmoid(f')                        (equations 11 to 14)
        m_t = max(log f + m_{t-1}, i')                                                        (equation 15)
        c_t = exp(log f + m_{t-1} - m_t) c_{t-1} + exp(i' - m_t) z                            (equations 8, 16, 17)
        n_t = exp(log f + m_{t-1} - m_t) n_{t-1} + exp(i' - m_t)                              (equation 9)
        h_t = o * c_t / n_t                                    the output                     (equation 10)

    Choices left open by the paper: f is a sigmoid; c, n and h start at zero and m at EMPTY, so that the first input
    counts in full and n >= 1 after it; no norm, convolution or projection around the cell. Initially, b_f is evenly
    spread from 3 to 6 within each head (in the released code, the spread depends on the layer's depth).
    """

    def __init__(self, input_size: int, hidden_size: int = 128, num_heads: int = 4) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size % num_heads:
            raise ValueError(f"num_heads is {num_heads}; allowed: divisors of hidden_size {hidden_size}")
        self.num_heads, size = num_heads, hidden_size // num_heads
        self.from_input = nn.Linear(input_size, 4 * hidden_size)
        self.recurrent = nn.Parameter(torch.empty(num_heads, size, 4 * size).uniform_(-(size**-0.5), size**-0.5))
        with torch.no_grad():
            self.from_input.bias.zero_()
            self.from_input.bias[2 * hidden_size : 3 * hidden_size] = torch.linspace(3, 6, size).repeat(num_heads)

    def initial_state(self, batch_size: int) -> SLSTMState:
        c, n, h, m = self.recurrent.new_zeros(4, batch_size, self.output_size)
        return SLSTMState(c.clone(), n.clone(), h.clone(), m + EMPTY)

    def _step(self, x: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
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


class IndRNN(Core):
    """IndRNN: layers of independent units (Li et al. 2018).

    h^l_t = relu(W^l x^l_t + b^l + w^l * h^l_{t-1})    (equation 4)

    x^1 is the input, x^{l+1} = h^l, and the output is h of the last layer. |w| is at most 1 (section 4.1); initially,
    w is uniform in [0, 1]. Two layers with nothing between them are our choice. h_{-1} = 0.
    """

    def __init__(self, input_size: int, hidden_size: int = 256, num_layers: int = 2) -> None:
        super().__init__(input_size, hidden_size)
        self.layers = nn.ModuleList(nn.Linear(hidden_size if n else input_size, hidden_size) for n in range(num_layers))
        self.recurrent = nn.Parameter(torch.rand(num_layers, hidden_size))

    def initial_state(self, batch_size: int) -> HiddenState:
        return HiddenState(self.recurrent.new_zeros(batch_size, *self.recurrent.shape))

    def forward(self, inputs: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        weights = bounded(self.recurrent, -1.0, 1.0)
        states: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            inputs = F.relu(torch.addcmul(layer(inputs), weights[index], state.h[:, index]))
            states.append(inputs)
        return inputs, HiddenState(torch.stack(states, 1))


class Frames(NamedTuple):
    past: Tensor  # [B, num_frames - 1, input_size]: the last inputs, the newest first


class FrameStack(Core):
    """Frame stack, a short, exact memory: relu(W [x_t ; x_{t-1} ; ...] + b) of the last `num_frames` inputs.
    Inputs before the start of the episode are zeros."""

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 256, num_frames: int = 4) -> None:
        super().__init__(input_size, hidden_size)
        self.num_frames = num_frames
        self.layer = nn.Linear(num_frames * input_size, hidden_size)

    def initial_state(self, batch_size: int) -> Frames:
        return Frames(self.layer.weight.new_zeros(batch_size, self.num_frames - 1, self.input_size))

    def forward(self, inputs: Tensor, state: Frames) -> tuple[Tensor, Frames]:
        frames = torch.cat([inputs.unsqueeze(1), state.past], 1)
        return F.relu(self.layer(frames.flatten(1))), Frames(frames[:, :-1])


class FeedforwardState(NamedTuple):
    """Empty state: no leaves."""


class Feedforward(Core):
    """Control without memory, which must fail at every memory task: one hidden layer, y = relu(W x + b)."""

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__(input_size, hidden_size)
        self.hidden = Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> FeedforwardState:
        return FeedforwardState()

    def forward(self, inputs: Tensor, state: FeedforwardState) -> tuple[Tensor, FeedforwardState]:
        return self.hidden(inputs).relu(), state

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: Any, bptt_length: int | None) -> Unrolled:
        return self.hidden(inputs).relu(), state, None


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp parameters x, of any shape, to low..high. Beyond a bound, only a gradient that would move x further out is
    set to 0. A plain clamp has gradient 0 there, so a parameter beyond a bound would never change again."""
    return _Bounded.apply(x, low, high) if torch.is_grad_enabled() else x.clamp(low, high)  # pyright: ignore


class _Bounded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:  # pyright: ignore
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:  # pyright: ignore
        x, *ctx.bounds = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        (x,), (low, high) = ctx.saved_tensors, ctx.bounds
        outward = ((x > high) & (grad < 0)) | ((x < low) & (grad > 0))  # steps go against the gradient
        return torch.where(outward, 0.0, grad), None, None
