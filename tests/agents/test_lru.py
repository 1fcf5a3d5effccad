"""LRU against its equations written number by number, its first eigenvalues and its size."""

import cmath
import math

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.linear.elementwise import LRU
from unrolls import random_inputs, random_state, randomize

SIZE, HIDDEN, STATE = 3, 4, 5


def layer_norm(values, scale, shift):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 1e-5)
    return [(v - mean) / deviation * a + b for v, a, b in zip(values, scale, shift, strict=True)]


def affine(layer, x):
    return [
        b + sum(w * v for w, v in zip(row, x, strict=True))
        for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def slow_block(block, x, h):
    """Equations 5 to 7 for one sequence: x [HIDDEN], h complex [STATE] -> x of the next block, next h."""
    u = layer_norm(x, block.norm.weight.tolist(), block.norm.bias.tolist())
    B, C = block.B.tolist(), block.C.tolist()
    new = []
    for n in range(STATE):
        eigenvalue = cmath.exp(complex(-math.exp(block.nu[n].item()), math.exp(block.theta[n].item())))
        row = [complex(B[n][d], B[STATE + n][d]) for d in range(HIDDEN)]
        driven = math.exp(block.gamma[n].item()) * sum(w * v for w, v in zip(row, u, strict=True))
        new.append(eigenvalue * h[n] + driven)
    y = [
        sum((complex(C[d][n], C[d][STATE + n]) * new[n]).real for n in range(STATE)) + block.D[d].item() * u[d]
        for d in range(HIDDEN)
    ]
    g = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in y]
    gated = [a * sigmoid(b) for a, b in zip(affine(block.value, g), affine(block.gate, g), strict=True)]
    return [a + b for a, b in zip(x, gated, strict=True)], new


@pytest.mark.parametrize("blocks", [1, 2])
def test_steps_are_the_equations(blocks):
    core = LRU(SIZE, HIDDEN, STATE, blocks).double()
    inputs, _ = random_inputs(SIZE, steps=3)
    state = random_state(core)
    held = [[[complex(*part) for part in one] for one in row] for row in state.h.tolist()]
    for x in inputs:
        output, state = core(x, state)
        slow = []
        for row, values in enumerate(x.tolist()):
            values = affine(core.encoder, values)
            for number, block in enumerate(core.blocks):
                values, held[row][number] = slow_block(block, values, held[row][number])
            slow.append(values)
        torch.testing.assert_close(output, torch.tensor(slow, dtype=torch.float64))
        torch.testing.assert_close(torch.view_as_complex(state.h), torch.tensor(held, dtype=torch.complex128))


def test_eigenvalues_begin_on_the_ring_and_inputs_at_its_scale():
    torch.manual_seed(0)
    block = LRU(SIZE, state_size=4000, min_radius=0.5, max_radius=0.9, max_phase=1.0).blocks[0]
    eigenvalues = block.eigenvalues()
    radius, phase = eigenvalues.abs(), eigenvalues.angle()
    assert 0.5 <= radius.min() < 0.51
    assert 0.89 < radius.max() <= 0.9
    assert radius.square().mean().item() == pytest.approx((0.25 + 0.81) / 2, abs=0.01)  # uniform on the area
    assert 0 < phase.min() < 0.01
    assert 0.99 < phase.max() <= 1
    torch.testing.assert_close(block.gamma.exp(), (1 - radius.square()).sqrt())


def test_the_state_never_grows_by_itself():
    core = randomize(LRU(SIZE, HIDDEN, STATE))
    assert bool((core.blocks[0].eigenvalues().abs() < 1).all())


def test_number_of_parameters():
    """Encoder, then nu, theta, gamma, B, C, D, norm, two maps."""
    core = make_core("lru", 64)
    assert sum(p.numel() for p in core.parameters()) == (64 + 1) * 128 + (
        3 * 128 + 2 * 2 * 128 * 128 + 128 + 2 * 128 + 2 * 129 * 128
    )
    assert sum(p.numel() for p in core.parameters()) == 107_648


@pytest.mark.parametrize(
    "options", [{"min_radius": 0.99, "max_radius": 0.9}, {"max_radius": 1.0}, {"min_radius": -0.1}, {"max_phase": 7.0}]
)
def test_impossible_rings_are_refused(options):
    with pytest.raises(ValueError, match="allowed"):
        make_core("lru", SIZE, **options)
