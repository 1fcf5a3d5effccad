"""Mamba-2 and, as an option, Mamba's S6: selective state-space models."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fast.hadamard import remember
from ..parts.short_convolution import ShortConvolution
from ..parts.stack import Mixer, Stack


class MambaState(NamedTuple):
    """The recurrent state and the last inputs of the short convolution. h [B, num_layers, num_heads, state_size,
    head_size] (with `s6`: [B, num_layers, num_heads * head_size, state_size]), past [B, num_layers, conv_size - 1,
    channels], the newest last."""

    h: Tensor
    past: Tensor


class Mamba2(Stack):
    """Mamba-2, or with `s6=true` Mamba: residual layers of selective state-space models.

    num_heads heads of head_size channels; the layers are those of `parts/stack.py`.

        z, c, delta' = W u                                         c concatenates x [H P], B [N] and C [N]
        x_t, B_t, C_t = silu(short convolution over c_{t-3} .. c_t)
        delta_t = softplus(delta'_t + b_delta),  A = -exp(a)                          one value per head
        h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t^T,   y_t = h_t^T C_t + D x_t   [N, P] per head
        added = W_o RMSNorm(y_t * silu(z_t))

    H = num_heads, P = head_size, N = state_size (Dao and Gu 2024, "Transformers are SSMs", sections 3, 6 and 7.1, one
    group of B and C for all heads).

    `s6=true` is the layer of Mamba (Gu and Dao 2023, algorithm 2 and section 3.4): delta per channel, through a
    bottleneck of ceil(H P / 16), A per channel and state index, B and C from x after the convolution, no norm before
    W_o; its recurrence is elementwise.

    Choices left open by the papers: `conv_size` 1 omits the convolution; one layer; no further layers in between.
    Initially, -A is uniform in 1..16 (s6: 1 .. N) and softplus(b_delta) log-uniform in 0.001..0.1, as in the released
    code (github.com/state-spaces/mamba).
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
        kind = S6Mixer if s6 else Mamba2Mixer
        sizes = (hidden_size, num_heads, head_size, state_size, conv_size)
        super().__init__(input_size, hidden_size, [kind(*sizes) for _ in range(num_layers)])


class Mamba2Mixer(Mixer):
    """One layer of `Mamba2`, whose docstring has the equations."""

    compiled = True

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, state_size: int, conv_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.state_size = num_heads, head_size, state_size
        self.width = num_heads * head_size
        channels = self.width + 2 * state_size
        self.widths = [self.width, channels, num_heads]  # Rows of `maps`: z, c, delta'
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

    def forward(
        self, u: Tensor, state: MambaState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, MambaState]:
        if reset is None:
            gate, mixed, step = self.maps(u).split(self.widths, -1)
            mixed, past = self.convolution(mixed, state.past)
        else:  # separate multiplications avoid concatenating their gradients
            gate, mixed, step = (F.linear(u, rows) for rows in self.maps.weight.split(self.widths))
            mixed, past = self.convolution.unroll(mixed, reset, state.past, bptt_length)
        x, key, query = mixed.split([self.width, self.state_size, self.state_size], -1)
        x = x.unflatten(-1, (self.num_heads, self.head_size))
        delta = F.softplus(step + self.step_bias)
        key, query = (part.unsqueeze(-2).expand(*delta.shape, self.state_size) for part in (key, query))
        value, log_decay = delta.unsqueeze(-1) * x, -delta * self.log_rate.exp()
        if reset is None:
            h = log_decay.exp()[..., None, None] * state.h + key.unsqueeze(3) * value.unsqueeze(2)
            read = torch.einsum("bhkv,bhk->bhv", h, query)
        else:
            decay = (-torch.expm1(log_decay)).unsqueeze(-1).expand_as(value)
            read, h = remember("complement", (decay, None), (value, key), query, reset, state.h, bptt_length)
            read = read.squeeze(3)
        y = (read + self.skip.unsqueeze(-1) * x).flatten(-2) * F.silu(gate)
        return self.out(F.rms_norm(y, y.shape[-1:], self.scale, 1e-5)), MambaState(h, past)


class S6Mixer(Mixer):
    """One layer of `Mamba2` with `s6`."""

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

    def forward(
        self, u: Tensor, state: MambaState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, MambaState]:
        x, gate = self.maps(u).chunk(2, -1)
        if reset is None:
            x, past = self.convolution(x, state.past)
        else:
            x, past = self.convolution.unroll(x, reset, state.past, bptt_length)
        low, key, query = self.select(x).split([self.rank, self.state_size, self.state_size], -1)
        delta, rate = F.softplus(self.step(low)), self.log_rate.exp()
        if reset is None:
            decay = (-delta.unsqueeze(-1) * rate).exp()
            h = decay * state.h + (delta * x).unsqueeze(-1) * key.unsqueeze(-2)
            y = (h @ query.unsqueeze(-1)).squeeze(-1)
        else:
            delta, key, query = (steps.unsqueeze(2) for steps in (delta, key, query))
            decay, write = (delta, rate.T.unsqueeze(0)), (delta * x.unsqueeze(2), key)
            y, h = remember("exp", decay, write, query, reset, state.h.mT.unsqueeze(1), bptt_length)
            y, h = y.flatten(2), h.squeeze(1).mT
        return self.out((y + self.skip * x) * F.silu(gate)), MambaState(h, past)


def first_steps(count: int) -> Tensor:
    """Sample b with softplus(b) log-uniform in 0.001..0.1."""
    return torch.empty(count).uniform_(-6.907755, -2.302585).exp().expm1().log()
