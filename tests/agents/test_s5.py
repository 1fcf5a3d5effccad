"""S5 against its equations, its first eigenvalues and the HiPPO-LegS matrix they come from."""

import cmath
import math

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.linear.elementwise import S5, hippo_legs
from slow_layers import SIZE, check_steps
from unrolls import random_state

HIDDEN, STATE = 4, 3


def slow_s5(mixer, u, state):
    """Equations 2 and 6 and the gated activation, state by state."""
    h = [complex(*part) for part in state[0].tolist()]
    new = []
    for n in range(STATE):
        eigenvalue = complex(-math.exp(mixer.log_rate[n].item()), mixer.frequency[n].item())
        step = math.exp(mixer.log_step[n].item())
        B = [complex(mixer.B[n, d].item(), mixer.B[STATE + n, d].item()) for d in range(HIDDEN)]
        decay = cmath.exp(eigenvalue * step)
        driven = (decay - 1) / eigenvalue * sum(b * x for b, x in zip(B, u.tolist(), strict=True))
        new.append(decay * h[n] + driven)
    y = []
    for d in range(HIDDEN):
        C = [complex(mixer.C[d, n].item(), -mixer.C[d, STATE + n].item()) for n in range(STATE)]
        y.append(2 * sum((c * x).real for c, x in zip(C, new, strict=True)) + (mixer.D[d] * u[d]).item())
    g = torch.tensor([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in y], dtype=torch.float64)
    added = g * torch.sigmoid(mixer.gate.weight @ g + mixer.gate.bias)
    return added, [torch.tensor([[v.real, v.imag] for v in new], dtype=torch.float64)]


def test_steps_are_the_equations():
    torch.manual_seed(0)
    core = S5(SIZE, HIDDEN, 2, STATE).double()
    check_steps(core, random_state(core), slow_s5)


def test_eigenvectors_are_those_of_the_normal_part_of_hippo_legs():
    """Equations 18 to 20 of appendix B.1.1: A = A_normal - p p^T, p_n = sqrt(n + 1/2)."""
    size = 8
    hippo = torch.zeros(size, size, dtype=torch.float64)
    for n in range(size):
        for k in range(n + 1):
            hippo[n, k] = -(n + 1) if n == k else -math.sqrt((2 * n + 1) * (2 * k + 1))
    p = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    normal = hippo + torch.outer(p, p)
    values, vectors = hippo_legs(size)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.mH, normal.to(torch.complex128))
    assert (values.imag[size // 2 :] > 0).all()


def test_impossible_steps_are_refused():
    with pytest.raises(ValueError, match="allowed: 0 < min_step <= max_step"):
        make_core("s5", SIZE, min_step=0.2)
