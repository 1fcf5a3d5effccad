"""Matrix memories with a decay per element: Mamba-2 and Mamba's S6, and stable Hadamard memory."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fast.hadamard import remember
from ..fast.scan import Convolution
from .stack import Mixer, Stack, Steps


class MambaState(NamedTuple):
    h: Tensor  # [B, num_layers, num_heads, state_size, head_size]; s6: [.., num_heads * head_size, state_size]
    past: Tensor  # [B, num_layers, conv_size - 1, channels]: the convolution's last inputs, the newest last


class Mamba2(Stack):
    """Mamba-2, or with `s6=true` Mamba: residual layers (see `Stack`) of selective state-space models.
    Dao and Gu 2024, "Transformers are SSMs"; Gu and Dao 2023.

        z, c, delta' = W u                                         c concatenates x [H P], B [N] and C [N]
        x_t, B_t, C_t = silu(short convolution over c_{t-3} .. c_t)
        delta_t = softplus(delta'_t + b_delta),  A = -exp(a)                          one value per head
        h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t^T,   y_t = h_t^T C_t + D x_t   [N, P] per head
        added = W_o RMSNorm(y_t * silu(z_t))

    H = num_heads, P = head_size, N = state_size (sections 3, 6 and 7.1, one group of B and C for all heads). `s6=true`
    is the layer of Mamba (algorithm 2 and section 3.4): delta per channel, through a bottleneck of ceil(H P / 16), A
    per channel and state index, B and C from x after the convolution, no norm before W_o. Choices left open by the
    papers: `conv_size` 1 omits the convolution; one layer; no further layers in between. Initially, -A is uniform in
    1..16 (s6: 1 .. N) and softplus(b_delta) log-uniform in 0.001..0.1, as in the released code
    (github.com/state-spaces/mamba).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 1,
        num_heads: int = 4,
        head_size: int = 64,
        state_size: int = 16,
        conv_size: int = 4,
        s6: bool = False,
    ) -> None:
        mixer = S6Mixer if s6 else Mamba2Mixer
        super().__init__(input_size, hidden_size, num_layers, mixer, num_heads, head_size, state_size, conv_size)


class Mamba2Mixer(Mixer):
    compiled = True

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, state_size: int, conv_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.state_size = num_heads, head_size, state_size
        self.width = num_heads * head_size
        channels = self.width + 2 * state_size
        self.widths = [self.width, channels, num_heads]  # rows of `maps`: z, c, delta'
        self.maps = nn.Linear(hidden_size, sum(self.widths), bias=False)
        self.convolution = ShortConvolution(channels, conv_size)
        self.log_rate = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
        self.step_bias = nn.Parameter(first_steps(num_heads))
        self.skip = nn.Parameter(torch.ones(num_heads))
        self.scale = nn.Parameter(torch.ones(self.width))
        self.out = nn.Linear(self.width, hidden_size, bias=False)

    def initial_state(self, batch_size: int) -> MambaState:
        h = self.skip.new_zeros(batch_size, self.num_heads, self.state_size, self.head_size)
        return MambaState(h, self.convolution.initial_state(batch_size))

    def forward(self, u: Tensor, state: MambaState, steps: Steps | None) -> tuple[Tensor, MambaState]:
        if steps is None:
            gate, mixed, step = self.maps(u).split(self.widths, -1)
        else:  # separate multiplications avoid concatenating their gradients
            gate, mixed, step = (F.linear(u, rows) for rows in self.maps.weight.split(self.widths))
        mixed, past = self.convolution(mixed, state.past, steps)
        x, key, query = mixed.split([self.width, self.state_size, self.state_size], -1)
        x = x.unflatten(-1, (self.num_heads, self.head_size))
        delta = F.softplus(step + self.step_bias)
        key, query = (part.unsqueeze(-2).expand(*delta.shape, self.state_size) for part in (key, query))
        value, log_decay = delta.unsqueeze(-1) * x, -delta * self.log_rate.exp()
        if steps is None:
            h = log_decay.exp()[..., None, None] * state.h + key.unsqueeze(3) * value.unsqueeze(2)
            read = torch.einsum("bhkv,bhk->bhv", h, query)
        else:
            decay, write = (-torch.expm1(log_decay)).unsqueeze(-1).expand_as(value), (value, key)
            read, h = remember("complement", (decay, None), write, query, steps.reset, state.h, steps.bptt_length)
            read = read.squeeze(3)
        y = (read + self.skip.unsqueeze(-1) * x).flatten(-2) * F.silu(gate)
        return self.out(F.rms_norm(y, y.shape[-1:], self.scale, 1e-5)), MambaState(h, past)


class S6Mixer(Mixer):
    compiled = True

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, state_size: int, conv_size: int) -> None:
        super().__init__()
        self.state_size, self.width = state_size, num_heads * head_size
        self.rank = -(-self.width // 16)
        self.maps = nn.Linear(hidden_size, 2 * self.width, bias=False)
        self.convolution = ShortConvolution(self.width, conv_size)
        self.select = nn.Linear(self.width, self.rank + 2 * state_size, bias=False)
        self.step = nn.Linear(self.rank, self.width)
        rates = torch.arange(1, state_size + 1, dtype=torch.get_default_dtype()).log()
        self.log_rate = nn.Parameter(rates.repeat(self.width, 1))
        self.skip = nn.Parameter(torch.ones(self.width))
        self.out = nn.Linear(self.width, hidden_size, bias=False)
        with torch.no_grad():
            self.step.bias.copy_(first_steps(self.width))

    def initial_state(self, batch_size: int) -> MambaState:
        h = self.skip.new_zeros(batch_size, self.width, self.state_size)
        return MambaState(h, self.convolution.initial_state(batch_size))

    def forward(self, u: Tensor, state: MambaState, steps: Steps | None) -> tuple[Tensor, MambaState]:
        x, gate = self.maps(u).chunk(2, -1)
        x, past = self.convolution(x, state.past, steps)
        low, key, query = self.select(x).split([self.rank, self.state_size, self.state_size], -1)
        delta, rate = F.softplus(self.step(low)), self.log_rate.exp()
        if steps is None:
            decay = (-delta.unsqueeze(-1) * rate).exp()
            h = decay * state.h + (delta * x).unsqueeze(-1) * key.unsqueeze(-2)
            y = (h @ query.unsqueeze(-1)).squeeze(-1)
        else:
            delta, key, query = (part.unsqueeze(2) for part in (delta, key, query))
            decay, write, start = (delta, rate.T.unsqueeze(0)), (delta * x.unsqueeze(2), key), state.h.mT.unsqueeze(1)
            y, h = remember("exp", decay, write, query, steps.reset, start, steps.bptt_length)
            y, h = y.flatten(2), h.squeeze(1).mT
        return self.out((y + self.skip * x) * F.silu(gate)), MambaState(h, past)


class ShortConvolution(nn.Module):
    """silu(b + sum_i w_i x_{t-i}), i = 0 .. size - 1, per channel, with zeros before an episode's first step; size 1
    leaves x unchanged. State: the last size - 1 inputs [B, size - 1, channels], the newest last."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        bound = size**-0.5
        # Row i: the weight of the input i steps ago.
        self.taps = nn.Parameter(torch.empty(size, channels).uniform_(-bound, bound)) if size > 1 else None
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if size > 1 else None
        self.like: Tensor
        self.register_buffer("like", torch.zeros(0), persistent=False)

    def initial_state(self, batch_size: int) -> Tensor:
        return self.like.new_zeros(batch_size, self.size - 1, self.channels)

    def forward(self, x: Tensor, past: Tensor, steps: Steps | None) -> tuple[Tensor, Tensor]:
        """x [B, channels], with `steps` [T, B, channels], and the state -> the same shape, last state."""
        if self.taps is None or self.bias is None:
            return x, past
        if steps is None:
            window = torch.cat([past, x.unsqueeze(1)], 1)
            return F.silu((window * self.taps.flip(0)).sum(1) + self.bias), window[:, 1:]
        length, cut = len(x), steps.bptt_length or 0
        whole = torch.cat([past.transpose(0, 1), x])  # step t is row t + size - 1
        time = torch.arange(length).unsqueeze(1)
        began = torch.where(steps.reset, time, -self.size).cummax(0).values  # the episode's first step in this unroll
        total: Any = Convolution.apply(whole, self.taps, began, cut)
        times = torch.arange(length - self.size + 1, length).unsqueeze(1)
        last, piece = whole[1 - self.size :], (length - 1) // cut * cut if cut else 0
        if piece:
            last = torch.where((times < piece).unsqueeze(2), last.detach(), last)
        in_episode = (times >= began[-1]).unsqueeze(2)
        return F.silu(total + self.bias), torch.where(in_episode, last, 0.0).transpose(0, 1)


def first_steps(count: int) -> Tensor:
    """Sample b with softplus(b) log-uniform in 0.001..0.1."""
    return torch.empty(count).uniform_(-6.907755, -2.302585).exp().expm1().log()


class SHMState(NamedTuple):
    memory: Tensor  # [B, num_layers, d, d]: axes value, key
    step: Tensor  # int64 [B, num_layers]: steps since the reset


class SHM(Stack):
    """Stable Hadamard memory (Le et al. 2025): residual layers (see `Stack`), each a matrix M [d, d]; d = memory_size.

        k, q = relu(W_k u) / sum, relu(W_q u) / sum;   v = W_v u;   e = sigmoid(w_e u)
        C_t = 1 + tanh(theta_t (W_c u)^T)                                       calibration (section 3.2)
        M_t = C_t * M_{t-1} + e v k^T                                           update      (section 3.1)
        added = W_o [M_t q + W_s u]                                             read, with a shortcut

    theta_t [d] is one of `num_thetas` learned rows, a random one at every step, so that products of C_t neither vanish
    nor explode (section 3.2). The released code (github.com/thaihungle/SHM) rounds uniform values from [0, 1) down, so
    the row is always the first; `num_thetas=1` reproduces this. Our choices: the row is a pseudo-random function of the
    steps since the reset, the same in actor and learner; one layer. As in the code, 1e-5 is added to sums, rows of
    theta are Xavier-uniform, and there is a shortcut.
    """

    def __init__(
        self, input_size: int, hidden_size: int = 128, num_layers: int = 1, memory_size: int = 32, num_thetas: int = 128
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, SHMMixer, memory_size, num_thetas)


class SHMMixer(Mixer):
    compiled = True

    def __init__(self, hidden_size: int, memory_size: int, num_thetas: int) -> None:
        super().__init__()
        self.memory_size, self.num_thetas = memory_size, num_thetas
        self.maps = nn.Linear(hidden_size, 5 * memory_size, bias=False)  # rows: W_k, W_q, W_v, W_c, W_s
        self.rate = nn.Linear(hidden_size, 1, bias=False)
        self.thetas = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_thetas, memory_size)))
        self.out = nn.Linear(memory_size, hidden_size)

    def initial_state(self, batch_size: int) -> SHMState:
        memory = self.thetas.new_zeros(batch_size, self.memory_size, self.memory_size)
        return SHMState(memory, torch.zeros(batch_size, dtype=torch.int64, device=memory.device))

    def forward(self, u: Tensor, state: SHMState, steps: Steps | None) -> tuple[Tensor, SHMState]:
        key, query, value, vector, shortcut = self.maps(u).chunk(5, -1)
        key, query = (F.relu(x) / (F.relu(x).sum(-1, keepdim=True) + 1e-5) for x in (key, query))
        value = torch.sigmoid(self.rate(u)) * value
        step = since_reset(steps, state.step)
        theta = self.thetas[scrambled(step) % self.num_thetas]
        if steps is None:
            calibration = 1 + torch.tanh(theta.unsqueeze(-1) * vector.unsqueeze(-2))
            memory = calibration * state.memory + value.unsqueeze(-1) * key.unsqueeze(-2)
            read = (memory @ query.unsqueeze(-1)).squeeze(-1)
        else:
            theta, vector, value, key, query = (x.unsqueeze(2) for x in (theta, vector, value, key, query))
            start, step = state.memory.mT.unsqueeze(1), step[-1]
            read, memory = remember("tanh", (theta, vector), (value, key), query, steps.reset, start, steps.bptt_length)
            read, memory = read.flatten(2), memory.squeeze(1).mT
        return self.out(read + shortcut), SHMState(memory, step + 1)


def since_reset(steps: Steps | None, start: Tensor) -> Tensor:
    """Count steps since the last reset, int64 [B], or at each of `steps` [T, B]; `start` [B]: those before step 0."""
    if steps is None:
        return start
    time = torch.arange(len(steps.reset), device=start.device).unsqueeze(1)
    began = torch.where(steps.reset, time, -1).cummax(0).values
    return torch.where(began >= 0, time - began, time + start)


def scrambled(x: Tensor) -> Tensor:
    """Return a pseudo-random 31-bit integer for each nonnegative integer (xorshift and multiplication)."""
    x = ((x + 1) * 0x9E3779B1) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return (x ^ (x >> 12)) & 0x7FFFFFFF
