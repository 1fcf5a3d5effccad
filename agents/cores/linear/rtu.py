"""Recurrent trace units (Elelimy et al. 2024): exact real-time recurrent learning at a linear cost."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Core, Unrolled
from .stack import scan


class RTUState(NamedTuple):
    """Complex values, real part first; n = num_units, D = input_size."""

    h: Tensor  # [B, n, 2]
    by_rate: Tensor  # dh / d rho [B, n, 2]
    by_phase: Tensor  # dh / d tau [B, n, 2]
    by_input: Tensor  # dh / d Re W [B, n, D, 2]


class RTU(Core):
    """Recurrent trace units: complex linear units whose gradient needs no backpropagation through time.

        h_t = lambda * h_{t-1} + gamma * (W x_t)                     complex [n]            (equation 5)
        lambda = r exp(i phi),  r = exp(-exp(rho)),  phi = exp(tau),  gamma = sqrt(1 - r^2)  (section 3)
        output = relu(W_o [relu(Re h) ; relu(Im h)] + b_o)           [hidden_size]

    The state contains dh / dp for p = rho, tau and Re W (section 3.1; dh / d Im W = i dh / d Re W). Where a gradient
    would be cut, h is replaced by h + sum_p dh/dp (p - stopped(p)): the same value, with the parameters' gradient of
    the entire past, whatever bptt_length is. Layers before the recurrence receive no gradient across a cut, as in every
    core. The derivatives are those at the weights with which an actor acted, as in the paper (appendix on stale
    gradients). Choices left open by the paper: one layer; a map after the units; initially, r^2 is uniform up to
    .999^2, phi uniform up to 2 pi, and W normal with variance 1 / (2 D).
    """

    loops_over_time = False

    def __init__(self, input_size: int, hidden_size: int = 128, num_units: int = 64) -> None:
        super().__init__(input_size, hidden_size)
        self.num_units = num_units
        squared = (1 - torch.rand(num_units)) * 0.999**2
        self.rho = nn.Parameter((-0.5 * squared.log()).log())
        self.tau = nn.Parameter(((1 - torch.rand(num_units)) * 2 * math.pi).log())
        self.W = nn.Parameter(torch.randn(2 * num_units, input_size) / math.sqrt(2 * input_size))  # rows: Re W, Im W
        self.out = nn.Linear(2 * num_units, hidden_size)

    def initial_state(self, batch_size: int) -> RTUState:
        new, shape = self.rho.new_zeros, (batch_size, self.num_units)
        return RTUState(new(*shape, 2), new(*shape, 2), new(*shape, 2), new(*shape, self.input_size, 2))

    def forward(self, inputs: Tensor, state: RTUState) -> tuple[Tensor, RTUState]:
        # Only operations that ONNX supports: no scan, and no product of real and complex tensors.
        rate, phase = self.rho.exp(), self.tau.exp()
        decay, gamma = torch.polar((-rate).exp(), phase), (1 - (-2 * rate).exp()).sqrt()
        real, imaginary = F.linear(inputs, self.W).chunk(2, -1)
        before, by_rate, by_phase, by_input = (torch.view_as_complex(leaf.contiguous()) for leaf in self.at_cut(state))
        h = decay * before + torch.complex(gamma * real, gamma * imaginary)
        with torch.no_grad():
            added = rate * (-2 * rate).exp() / gamma
            by_rate = decay * by_rate + torch.complex(-rate * decay.real, -rate * decay.imag) * before
            by_rate = by_rate + torch.complex(added * real, added * imaginary)
            by_phase = decay * by_phase + torch.complex(-phase * decay.imag, phase * decay.real) * before
            weighted = gamma.unsqueeze(1) * inputs.unsqueeze(1)
            decay = torch.polar((-rate).exp().unsqueeze(1), phase.unsqueeze(1))  # ONNX unsqueezes no complex tensor
            by_input = decay * by_input + torch.complex(weighted, torch.zeros_like(weighted))
        return self._read(h), RTUState(*(torch.view_as_real(leaf) for leaf in (h, by_rate, by_phase, by_input)))

    def unroll_at_once(self, inputs: Tensor, reset: Tensor, state: RTUState, bptt_length: int | None) -> Unrolled:
        pieces = list[Tensor]()
        size = bptt_length or len(inputs)
        for index, (part, starts) in enumerate(zip(inputs.split(size), reset.split(size), strict=True)):
            if index:
                state = state._replace(h=state.h.detach())
            h, state = self._piece(part, starts, state)
            pieces.append(h)
        return self._read(torch.cat(pieces)), state, None

    def _piece(self, inputs: Tensor, reset: Tensor, state: RTUState) -> tuple[Tensor, RTUState]:
        """inputs [T, B, D], reset bool [T, B] -> h complex [T, B, n], and the state after the last step, with dh / d
        rho, dh / d tau and dh / d Re W (equations 6 to 9)."""
        rate, phase = self.rho.exp(), self.tau.exp()
        decay, gamma = torch.polar((-rate).exp(), phase), (1 - (-2 * rate).exp()).sqrt()
        real, imaginary = F.linear(inputs, self.W).chunk(2, -1)
        driven = torch.complex(real, imaginary)
        start = torch.view_as_complex(self.at_cut(state).h.contiguous())
        h = scan(decay.expand(1, 1, -1), gamma * driven, reset, start)
        with torch.no_grad():
            start, *traces = (torch.view_as_complex(leaf.contiguous()) for leaf in state)
            before = torch.where(reset.unsqueeze(2), 0, torch.cat([start.unsqueeze(0), h[:-1]]))
            # d lambda / d rho = -exp(rho) lambda, d gamma / d rho = exp(rho) r^2 / gamma,
            # d lambda / d tau = i exp(tau) lambda
            by_rate = -rate * decay * before + rate * (-2 * rate).exp() / gamma * driven
            by_phase = 1j * phase * decay * before
            by_rate = scan(decay.expand(1, 1, -1), by_rate, reset, traces[0])[-1]
            by_phase = scan(decay.expand(1, 1, -1), by_phase, reset, traces[1])[-1]
            time = torch.arange(len(inputs), device=inputs.device).unsqueeze(1)
            began = torch.where(reset, time, -1).cummax(0).values[-1]
            same_episode = (time >= began).unsqueeze(2)
            powers = decay ** (len(inputs) - 1 - time)  # [T, n]
            weight = torch.where(same_episode, (gamma * powers).unsqueeze(1), 0)  # [T, B, n]
            current = torch.where(same_episode, inputs, 0.0).to(weight.dtype)
            by_input = torch.where((began >= 0)[:, None, None], 0, traces[2]) * (decay ** len(inputs)).unsqueeze(1)
            by_input = by_input + torch.einsum("tbn,tbd->bnd", weight, current)
        return h, RTUState(*(torch.view_as_real(leaf) for leaf in (h[-1], by_rate, by_phase, by_input)))

    def at_cut(self, state: RTUState) -> RTUState:
        """Make dh / dp the gradient of h with respect to each parameter p, unless h already has a gradient."""
        if not torch.is_grad_enabled() or state.h.requires_grad:
            return state
        by_rate, by_phase, by_input = (torch.view_as_complex(leaf.detach().contiguous()) for leaf in state[1:])
        real, imaginary = (self.W - self.W.detach()).chunk(2)
        changed = (by_input * torch.complex(real, imaginary)).sum(-1)
        zero = changed + by_rate * (self.rho - self.rho.detach()) + by_phase * (self.tau - self.tau.detach())
        return state._replace(h=state.h + torch.view_as_real(zero))

    def _read(self, h: Tensor) -> Tensor:
        """h complex [..., n] -> output [..., hidden_size]."""
        return F.relu(self.out(F.relu(torch.cat([h.real, h.imag], -1))))
