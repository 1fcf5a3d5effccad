"""Fast and forgetful memory (Morad et al. 2023, "Reinforcement learning with fast and forgetful memory")."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Axis
from ..parts.stack import AtOnce, recur

FASTEST = 0.67
"""Largest initial decay rate, per step: as in the released code, which must keep exp(rate * 1024) finite."""
FORGOTTEN = 0.01  # Share of an input that remains in the initially slowest trace after max_period steps


class FFMState(NamedTuple):
    """traces [B, memory_size, context_size, 2]: S, real part first."""

    traces: Tensor


class FFM(AtOnce):
    """Fast and forgetful memory: sums of gated inputs that decay and rotate at individual rates.

    m = memory_size, c = context_size:

        v_t, y_t, i_t, o_t = W x_t + b           of widths m, H, m, H
        S_t = gamma * S_{t-1} + (v_t * sigmoid(i_t)) 1_c^T           complex [m, c]        (section 4.1)
        gamma_jk = exp(-|alpha_j| + i omega_k)                                             (equation 4)
        z_t = LayerNorm(W_z [Re S_t ; Im S_t] + b_z)                 without scale or shift
        output = z_t * sigmoid(o_t) + y_t * (1 - sigmoid(o_t))       [H], H = hidden_size  (section 4.2)

    Initially, alpha is evenly spread from FASTEST down to the rate at which FORGOTTEN remains after max_period steps,
    and the periods 2 pi / omega are evenly spread from 1 to max_period. All traces start at zero.

    As in the released code (github.com/proroklab/ffm), the four maps of the input are one matrix in the order above,
    and the parts of S are mixed in the order (m, c, real or imaginary). Unlike there, |alpha| is free.
    """

    parts_of_state = (Axis("trace", "traces", 1),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        memory_size: int = 32,
        context_size: int = 4,
        max_period: int = 1024,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.memory_size, self.context_size = memory_size, context_size
        slowest = min(-math.log(FORGOTTEN) / max_period, FASTEST)
        self.alpha = nn.Parameter(torch.linspace(FASTEST, slowest, memory_size))
        self.omega = nn.Parameter(2 * math.pi / torch.linspace(1, max_period, context_size))
        self.maps = nn.Linear(input_size, 2 * memory_size + 2 * hidden_size)
        self.mix = nn.Linear(2 * memory_size * context_size, hidden_size)

    def initial_state(self, batch_size: int) -> FFMState:
        return FFMState(self.mix.weight.new_zeros(batch_size, self.memory_size, self.context_size, 2))

    def _run(
        self, inputs: Tensor, state: FFMState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, FFMState]:
        m, size = self.memory_size, self.output_size
        v, passed, gate_in, gate_out = self.maps(inputs).split([m, size, m, size], -1)
        added = (v * torch.sigmoid(gate_in)).unsqueeze(-1).expand(*v.shape, self.context_size)
        added = torch.complex(added, torch.zeros_like(added))
        traces, last = recur(self.gamma(), added, state.traces, reset, bptt_length)
        z = self.mix(torch.view_as_real(traces).flatten(-3))
        return torch.lerp(passed, F.layer_norm(z, z.shape[-1:]), torch.sigmoid(gate_out)), FFMState(last)

    def gamma(self) -> Tensor:
        """Return gamma, complex [m, c]."""
        size = (self.memory_size, self.context_size)
        return torch.polar((-self.alpha.abs()).exp().unsqueeze(1).expand(size), self.omega.expand(size))

    def half_lives(self) -> Tensor:
        """Return the steps after which half of an addition to a trace has decayed, [m]: log 2 / |alpha|."""
        return math.log(2) / self.alpha.abs()
