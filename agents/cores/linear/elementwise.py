"""Elementwise linear recurrences: LRU, S5, fast and forgetful memory, and minGRU."""

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Axis, HiddenState
from ..gru import gate_biases
from .stack import AtOnce, Mixer, Stack, Steps, recur, through

FASTEST = 0.67  # Largest initial decay rate of FFM per step, as in the released code
FORGOTTEN = 0.01  # Share of an input that remains in FFM's initially slowest trace after max_period steps


class LRU(AtOnce):
    """Linear recurrent unit: blocks of a linear recurrence with a complex diagonal, each followed by a gated layer.
    Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences".

        x^0_t = W_e x_t + b_e                                        encoder, H = hidden_size, N = state_size
        u_t   = LayerNorm(x^{l-1}_t)
        h_t   = lambda * h_{t-1} + exp(gamma) * (B u_t)              complex [N]            (equations 5 to 7)
        y_t   = Re(C h_t) + D * u_t                                  real [H]
        lambda = exp(-exp(nu) + i exp(theta))                        |lambda| < 1 always    (section 3.3)
        g_t   = gelu(y_t)
        x^l_t = x^{l-1}_t + (W_1 g_t + b_1) * sigmoid(W_2 g_t + b_2)                         (figure 1, appendix A)

    The output is x of the last block. Initially, |lambda|^2 is uniform in min_radius^2 .. max_radius^2, the phase is
    uniform up to max_phase, and exp(gamma) = sqrt(1 - |lambda|^2) (equation 7). Real and imaginary parts are normal
    with variance 1 / (2 H) in B and 1 / N in C. Norm, nonlinearity and gated layer are those of Zucchet's
    reimplementation (github.com/NicolasZucchet/minimal-LRU).
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
        super().__init__(input_size, hidden_size)
        if not 0 <= min_radius < max_radius < 1:
            raise ValueError(f"min_radius is {min_radius}, max_radius {max_radius}; allowed: 0 <= min < max < 1")
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase is {max_phase}; allowed: above 0, at most 2 pi")
        self.state_size, self.num_blocks = state_size, num_blocks
        self.encoder = nn.Linear(input_size, hidden_size)
        rings = (min_radius, max_radius, max_phase)
        self.blocks = nn.ModuleList(Block(hidden_size, state_size, *rings) for _ in range(num_blocks))

    def initial_state(self, batch_size: int) -> HiddenState:
        return HiddenState(self.encoder.weight.new_zeros(batch_size, self.num_blocks, self.state_size, 2))

    def _run(self, inputs: Tensor, state: HiddenState, steps: Steps | None) -> tuple[Tensor, HiddenState]:
        return through(self.blocks, self.encoder(inputs), state, steps)


class Block(nn.Module):
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

    def forward(self, x: Tensor, state: HiddenState, steps: Steps | None) -> tuple[Tensor, HiddenState]:
        """x^{l-1} [..., H], h [B, N, 2] -> x^l [..., H], the last h. Re(C h) = Re C Re h - Im C Im h."""
        u = self.norm(x)
        real, imaginary = F.linear(u, self.B).chunk(2, -1)
        scale = self.gamma.exp()
        driven = torch.complex(scale * real, scale * imaginary)
        h, last = recur(self.eigenvalues(), driven, state.h, steps)
        g = F.gelu(F.linear(torch.cat([h.real, -h.imag], -1), self.C) + self.D * u)
        return x + self.value(g) * torch.sigmoid(self.gate(g)), HiddenState(last)


class S5(Stack):
    """S5: residual layers (see `Stack`), each a linear state-space model with a complex diagonal; N = state_size.
    Smith et al. 2023, "Simplified state space layers for sequence modeling", with resets (Lu et al. 2023).

        Lambda' = exp(Lambda Delta),  B' = Lambda^-1 (Lambda' - 1) B                        (equation 6)
        h_t = Lambda' h_{t-1} + B' u_t                                complex [N]            (equation 2)
        y_t = 2 Re(C h_t) + D * u_t                                   real [hidden_size]     (section 3.2, appendix B.1)
        added = g * sigmoid(W g + b),  g = gelu(y_t)                                         (appendix G.1)

    Lambda = -exp(rho) + i omega and Delta = exp(s) are learned, one value per state. Initially, Lambda contains the
    eigenvalues with positive imaginary part of the normal part of HiPPO-LegS of size 2 N, B and C are random matrices
    in the basis of its eigenvectors (section 3.3), and Delta is log-uniform in min_step..max_step. A reset replaces the
    state inside the scan (Lu et al., section 3.2). Choices left open by the papers: one block of HiPPO-LegS; LayerNorm
    before the layer; one layer (Lu et al. use four).
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
        super().__init__(input_size, hidden_size, num_layers, S5Mixer, state_size, min_step, max_step)


class S5Mixer(Mixer):
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

    def initial_state(self, batch_size: int) -> HiddenState:
        return HiddenState(self.log_rate.new_zeros(batch_size, len(self.log_rate), 2))

    def forward(self, u: Tensor, state: HiddenState, steps: Steps | None) -> tuple[Tensor, HiddenState]:
        rate, step = self.log_rate.exp(), self.log_step.exp()
        decay = torch.polar((-rate * step).exp(), self.frequency * step)
        squared = rate.square() + self.frequency.square()
        # Only operations that ONNX supports: 1 / Lambda = conj(Lambda) / |Lambda|^2.
        inverse = torch.complex(-rate / squared, -self.frequency / squared)
        driven = torch.complex(decay.real - 1, decay.imag) * inverse * torch.complex(*F.linear(u, self.B).chunk(2, -1))
        h, last = recur(decay, driven, state.h, steps)
        g = F.gelu(2 * F.linear(torch.cat([h.real, h.imag], -1), self.C) + self.D * u)
        return g * torch.sigmoid(self.gate(g)), HiddenState(last)


def hippo_legs(size: int) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [size], sorted by imaginary part, and eigenvectors [size, size] of the normal part of
    HiPPO-LegS, complex128: A = -1/2 - (p_n p_k / 2) sign(n - k) with p_n = sqrt(2 n + 1) (appendix B.1.1)."""
    p = (2 * torch.arange(size, dtype=torch.float64) + 1).sqrt()
    skew = -0.5 * torch.outer(p, p)
    imaginary, vectors = torch.linalg.eigh(-1j * (skew.tril(-1) - skew.triu(1)))
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary), vectors


class FFMState(NamedTuple):
    traces: Tensor  # [B, memory_size, context_size, 2]: S, real part first


class FFM(AtOnce):
    """Fast and forgetful memory: sums of gated inputs that decay and rotate; m = memory_size, c = context_size.
    Morad et al. 2023, "Reinforcement learning with fast and forgetful memory".

        v_t, y_t, i_t, o_t = W x_t + b           of widths m, H, m, H
        S_t = gamma * S_{t-1} + (v_t * sigmoid(i_t)) 1_c^T           complex [m, c]        (section 4.1)
        gamma_jk = exp(-|alpha_j| + i omega_k)                                             (equation 4)
        z_t = LayerNorm(W_z [Re S_t ; Im S_t] + b_z)                 without scale or shift
        output = z_t * sigmoid(o_t) + y_t * (1 - sigmoid(o_t))       [H], H = hidden_size  (section 4.2)

    Initially, alpha is evenly spread from FASTEST down to the rate at which FORGOTTEN remains after max_period steps,
    and the periods 2 pi / omega from 1 to max_period. S_0 = 0. As in the released code (github.com/proroklab/ffm), the
    maps of the input are one matrix in the order above, and W_z reads S in the order (m, c, real or imaginary). Unlike
    there, |alpha| is free.
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
        super().__init__(input_size, hidden_size)
        self.memory_size, self.context_size = memory_size, context_size
        slowest = min(-math.log(FORGOTTEN) / max_period, FASTEST)
        self.alpha = nn.Parameter(torch.linspace(FASTEST, slowest, memory_size))
        self.omega = nn.Parameter(2 * math.pi / torch.linspace(1, max_period, context_size))
        self.maps = nn.Linear(input_size, 2 * memory_size + 2 * hidden_size)
        self.mix = nn.Linear(2 * memory_size * context_size, hidden_size)

    def initial_state(self, batch_size: int) -> FFMState:
        return FFMState(self.mix.weight.new_zeros(batch_size, self.memory_size, self.context_size, 2))

    def _run(self, inputs: Tensor, state: FFMState, steps: Steps | None) -> tuple[Tensor, FFMState]:
        m, size = self.memory_size, self.output_size
        v, passed, gate_in, gate_out = self.maps(inputs).split([m, size, m, size], -1)
        added = (v * torch.sigmoid(gate_in)).unsqueeze(-1).expand(*v.shape, self.context_size)
        added = torch.complex(added, torch.zeros_like(added))
        traces, last = recur(self.gamma(), added, state.traces, steps)
        z = self.mix(torch.view_as_real(traces).flatten(-3))
        return torch.lerp(passed, F.layer_norm(z, z.shape[-1:]), torch.sigmoid(gate_out)), FFMState(last)

    def gamma(self) -> Tensor:
        """Return gamma, complex [m, c]."""
        size = (self.memory_size, self.context_size)
        return torch.polar((-self.alpha.abs()).exp().unsqueeze(1).expand(size), self.omega.expand(size))

    def half_lives(self) -> Tensor:
        """Return the steps after which half of an addition to a trace has decayed, [m]: log 2 / |alpha|."""
        return math.log(2) / self.alpha.abs()


class MinGRU(AtOnce):
    """minGRU (Feng et al. 2024, "Were RNNs all we needed?"): layers whose gates depend on the input only.

        z_t = sigmoid(W_z x_t + b_z)                 how much is new                       (section 3.1.2)
        n_t = W_h x_t + b_h                                                                (section 3.1.2)
        h_t = (1 - z_t) * h_{t-1} + z_t * n_t        the layer's output; h_{-1} = 0

    The output is h of the last layer. Choices left open by the paper: two layers with nothing between them, since only
    a second layer's retention can depend on content; both maps have biases; n is linear, since a scan without
    logarithms does not need the positive values of appendix B. `memory_span`: see `gate_biases`.
    """

    parts_of_state = (Axis("layer", "h", 1), Axis("unit", "h", 2))

    def __init__(self, input_size: int, hidden_size: int = 256, num_layers: int = 2, memory_span: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        layers = [nn.Linear(size, 2 * hidden_size) for size in sizes]  # rows: z, n
        self.layers = nn.ModuleList(layers)
        for layer in layers if memory_span else ():
            with torch.no_grad():
                layer.bias[:hidden_size] = -gate_biases(hidden_size, memory_span)

    def initial_state(self, batch_size: int) -> HiddenState:
        weight = next(self.parameters())
        return HiddenState(weight.new_zeros(batch_size, len(self.layers), self.output_size))

    def _run(self, inputs: Tensor, state: HiddenState, steps: Steps | None) -> tuple[Tensor, HiddenState]:
        return through([partial(self._layer, layer) for layer in self.layers], inputs, state, steps)

    def _layer(
        self, layer: nn.Module, x: Tensor, state: HiddenState, steps: Steps | None
    ) -> tuple[Tensor, HiddenState]:
        h, last = recur(*self.gates(layer(x)), state.h, steps)
        return h, HiddenState(last)

    def gates(self, mapped: Tensor) -> tuple[Tensor, Tensor]:
        """[..., 2 H] -> 1 - z and z * n, both [..., H]; 1 - sigmoid(v) = sigmoid(-v)."""
        v, n = mapped.chunk(2, -1)
        return torch.sigmoid(-v), torch.sigmoid(v) * n
