"""S5 (Smith et al. 2023, "Simplified state space layers for sequence modeling"), with resets (Lu et al. 2023)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..parts.stack import Mixer, Stack, recur


class S5State(NamedTuple):
    """h [B, num_layers, state_size, 2]: the complex state of every layer, real part first."""

    h: Tensor


class S5(Stack):
    """S5: residual layers, each a linear state-space model with a complex diagonal.

    N = state_size; the layers are those of `parts/stack.py`.

        Lambda' = exp(Lambda Delta),  B' = Lambda^-1 (Lambda' - 1) B                        (equation 6)
        h_t = Lambda' h_{t-1} + B' u_t                                complex [N]            (equation 2)
        y_t = 2 Re(C h_t) + D * u_t                                   real [hidden_size]     (section 3.2, appendix B.1)
        added = g * sigmoid(W g + b),  g = gelu(y_t)                                         (appendix G.1)

    Lambda = -exp(rho) + i omega, so that it stays in the left half-plane, and Delta = exp(s) are learned, one value
    per state. Initially, Lambda contains the eigenvalues with positive imaginary part of the normal part of HiPPO-LegS,
    a matrix of size 2 N, B and C are random matrices in the basis of its eigenvectors (section 3.3), and Delta is
    log-uniform in min_step..max_step. A reset replaces the state inside the scan, as in Lu et al. 2023 (section 3.2).

    S5 differs from `lru` in its initial values and discretization. Choices left open by the papers: one block
    of HiPPO-LegS; LayerNorm before the layer; one layer (Lu et al. use four).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 1,
        state_size: int = 64,
        min_step: float = 0.001,
        max_step: float = 0.1,
    ) -> None:
        if not 0 < min_step <= max_step:
            raise ValueError(f"min_step is {min_step}, max_step {max_step}; allowed: 0 < min_step <= max_step")
        sizes = (hidden_size, state_size, min_step, max_step)
        super().__init__(input_size, hidden_size, [S5Mixer(*sizes) for _ in range(num_layers)])


class S5Mixer(Mixer):
    """One layer of `S5`, whose docstring has the equations."""

    def __init__(self, hidden_size: int, state_size: int, min_step: float, max_step: float) -> None:
        super().__init__()
        eigenvalues, vectors = hippo_legs(2 * state_size)
        eigenvalues, vectors = eigenvalues[state_size:], vectors[:, state_size:]
        kind = torch.get_default_dtype()
        self.log_rate = nn.Parameter((-eigenvalues.real).log().to(kind))
        self.frequency = nn.Parameter(eigenvalues.imag.to(kind, copy=True, memory_format=torch.contiguous_format))
        low, high = math.log(min_step), math.log(max_step)
        self.log_step = nn.Parameter(low + (high - low) * torch.rand(state_size))
        # V^H B and C V of real random B [2 N, H] and C [H, 2 N]; rows of B: real parts, then imaginary parts.
        read_in = vectors.mH @ (torch.randn(2 * state_size, hidden_size).to(vectors) / math.sqrt(hidden_size))
        read_out = (torch.randn(hidden_size, 2 * state_size).to(vectors) / math.sqrt(2 * state_size)) @ vectors
        self.B = nn.Parameter(torch.cat([read_in.real, read_in.imag]).to(kind))
        self.C = nn.Parameter(torch.cat([read_out.real, -read_out.imag], 1).to(kind))
        self.D = nn.Parameter(torch.randn(hidden_size))
        self.gate = nn.Linear(hidden_size, hidden_size)

    def initial_state(self, batch_size: int) -> S5State:
        return S5State(self.log_rate.new_zeros(batch_size, len(self.log_rate), 2))

    def forward(
        self, u: Tensor, state: S5State, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, S5State]:
        rate, step = self.log_rate.exp(), self.log_step.exp()
        decay = torch.polar((-rate * step).exp(), self.frequency * step)
        squared = rate.square() + self.frequency.square()
        # Only operations that ONNX supports: 1 / Lambda = conj(Lambda) / |Lambda|^2.
        inverse = torch.complex(-rate / squared, -self.frequency / squared)
        real, imaginary = F.linear(u, self.B).chunk(2, -1)
        driven = torch.complex(decay.real - 1, decay.imag) * inverse * torch.complex(real, imaginary)
        h, last = recur(decay, driven, state.h, reset, bptt_length)
        y = 2 * F.linear(torch.cat([h.real, h.imag], -1), self.C) + self.D * u
        g = F.gelu(y)
        return g * torch.sigmoid(self.gate(g)), S5State(last)


def hippo_legs(size: int) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [size], sorted by imaginary part, and eigenvectors [size, size] of the normal part of
    HiPPO-LegS, complex128. A = -1/2 - (p_n p_k / 2) sign(n - k) with p_n = sqrt(2 n + 1): a skew-symmetric matrix minus
    half the identity (appendix B.1.1)."""
    p = (2 * torch.arange(size, dtype=torch.float64) + 1).sqrt()
    skew = -0.5 * torch.outer(p, p)
    skew = skew.tril(-1) - skew.triu(1)
    imaginary, vectors = torch.linalg.eigh(-1j * skew)
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary), vectors
