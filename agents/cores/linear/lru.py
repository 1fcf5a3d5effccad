"""Linear recurrent unit (Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences")."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Axis
from ..parts.stack import AtOnce, recur


class LRUState(NamedTuple):
    """h [B, num_blocks, state_size, 2]: the complex state of every block, real part first."""

    h: Tensor


class LRU(AtOnce):
    """Linear recurrent unit: blocks of a linear recurrence with a complex diagonal, each followed by a gated layer.

        x^0_t = W_e x_t + b_e                                        encoder, H = hidden_size, N = state_size
        u_t   = LayerNorm(x^{l-1}_t)
        h_t   = lambda * h_{t-1} + exp(gamma) * (B u_t)              complex [N]            (equations 5 to 7)
        y_t   = Re(C h_t) + D * u_t                                  real [H]
        lambda = exp(-exp(nu) + i exp(theta))                        |lambda| < 1 always    (section 3.3)
        g_t   = gelu(y_t)
        x^l_t = x^{l-1}_t + (W_1 g_t + b_1) * sigmoid(W_2 g_t + b_2)                         (figure 1, appendix A)

    The output [B, H] is that of the last block. Initially, |lambda|^2 is uniform between the squares of min_radius and
    max_radius, and the phase is uniform up to max_phase; exp(gamma) = sqrt(1 - |lambda|^2) keeps the state as large as
    its input (equation 7). Real and imaginary parts are normal with variance 1 / (2 H) in B and 1 / N in C.

    Norm, nonlinearity and gated layer are those of Zucchet's reimplementation (github.com/NicolasZucchet/minimal-LRU).
    """

    parts_of_state = (Axis("block", "h", 1), Axis("unit", "h", 2))

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        state_size: int = 128,
        num_blocks: int = 1,
        min_radius: float = 0.9,
        max_radius: float = 0.999,
        max_phase: float = 2 * math.pi,
    ) -> None:
        super().__init__()
        if not 0 <= min_radius < max_radius < 1:
            raise ValueError(f"min_radius is {min_radius}, max_radius {max_radius}; allowed: 0 <= min < max < 1")
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase is {max_phase}; allowed: above 0, at most 2 pi")
        self.input_size, self.output_size = input_size, hidden_size
        self.state_size, self.num_blocks = state_size, num_blocks
        self.encoder = nn.Linear(input_size, hidden_size)
        rings = (min_radius, max_radius, max_phase)
        self.blocks = nn.ModuleList(Block(hidden_size, state_size, *rings) for _ in range(num_blocks))

    def initial_state(self, batch_size: int) -> LRUState:
        return LRUState(self.encoder.weight.new_zeros(batch_size, self.num_blocks, self.state_size, 2))

    def _run(
        self, inputs: Tensor, state: LRUState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, LRUState]:
        x, states = self.encoder(inputs), list[Tensor]()
        for index, block in enumerate(self.blocks):
            added, last = block(x, state.h[:, index], reset, bptt_length)
            x = x + added
            states.append(last)
        return x, LRUState(torch.stack(states, 1))


class Block(nn.Module):
    """One linear recurrence and the gated layer after it; the equations are those of `LRU`."""

    def __init__(self, hidden_size: int, state_size: int, low: float, high: float, max_phase: float) -> None:
        super().__init__()
        squared = torch.rand(state_size) * (high**2 - low**2) + low**2  # |lambda|^2
        self.nu = nn.Parameter((-0.5 * squared.log()).log())
        self.theta = nn.Parameter(((1 - torch.rand(state_size)) * max_phase).log())
        self.gamma = nn.Parameter(0.5 * (1 - squared).log())
        self.norm = nn.LayerNorm(hidden_size)
        # Rows of B: real parts, then imaginary parts; columns of C likewise.
        self.B = nn.Parameter(torch.randn(2 * state_size, hidden_size) / math.sqrt(2 * hidden_size))
        self.C = nn.Parameter(torch.randn(hidden_size, 2 * state_size) / math.sqrt(state_size))
        self.D = nn.Parameter(torch.randn(hidden_size))
        self.value = nn.Linear(hidden_size, hidden_size)
        self.gate = nn.Linear(hidden_size, hidden_size)

    def eigenvalues(self) -> Tensor:
        """Return lambda, complex [N]."""
        return torch.polar((-self.nu.exp()).exp(), self.theta.exp())

    def half_lives(self) -> Tensor:
        """Return the steps after which half of an addition to the state has decayed, [N]: log 2 / -log |lambda|."""
        return math.log(2) / self.nu.exp()

    def forward(self, x: Tensor, start: Tensor, reset: Tensor | None, bptt_length: int | None) -> tuple[Tensor, Tensor]:
        """x [..., H], h_{t-1} [B, N, 2] -> addition to x [..., H], the last h. Re(C h) = Re C Re h - Im C Im h."""
        u = self.norm(x)
        real, imaginary = F.linear(u, self.B).chunk(2, -1)
        scale = self.gamma.exp()
        driven = torch.complex(scale * real, scale * imaginary)
        h, last = recur(self.eigenvalues(), driven, start, reset, bptt_length)
        y = F.linear(torch.cat([h.real, -h.imag], -1), self.C) + self.D * u
        g = F.gelu(y)
        return self.value(g) * torch.sigmoid(self.gate(g)), last
