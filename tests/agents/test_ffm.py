"""FFM against its equations written number by number, its first rates and its size."""

import cmath
import math

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.linear.elementwise import FFM
from unrolls import random_inputs, random_state, randomize

SIZE, HIDDEN, MEMORY, CONTEXT = 3, 4, 2, 3


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def affine(layer, x):
    return [
        b + sum(w * v for w, v in zip(row, x, strict=True))
        for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def slow_step(core, x, traces):
    """Sections 4.1 and 4.2 for one sequence: x [SIZE], traces complex [MEMORY][CONTEXT] -> output, next traces."""
    mapped = affine(core.maps, x)
    v, y = mapped[:MEMORY], mapped[MEMORY : MEMORY + HIDDEN]
    gate_in, gate_out = mapped[MEMORY + HIDDEN : 2 * MEMORY + HIDDEN], mapped[2 * MEMORY + HIDDEN :]
    new, parts = [], []
    for j in range(MEMORY):
        new.append([])
        for k in range(CONTEXT):
            gamma = cmath.exp(complex(-abs(core.alpha[j].item()), core.omega[k].item()))
            new[j].append(gamma * traces[j][k] + v[j] * sigmoid(gate_in[j]))
            parts += [new[j][k].real, new[j][k].imag]
    z = affine(core.mix, parts)
    mean = sum(z) / HIDDEN
    deviation = math.sqrt(sum((value - mean) ** 2 for value in z) / HIDDEN + 1e-5)
    return [
        (z[d] - mean) / deviation * sigmoid(gate_out[d]) + y[d] * (1 - sigmoid(gate_out[d])) for d in range(HIDDEN)
    ], new


def test_steps_are_the_equations():
    core = randomize(FFM(SIZE, HIDDEN, MEMORY, CONTEXT))
    inputs, _ = random_inputs(SIZE, steps=4)
    state = random_state(core)
    held = [[[complex(*part) for part in one] for one in row] for row in state.traces.tolist()]
    for x in inputs:
        output, state = core(x, state)
        slow = []
        for row, values in enumerate(x.tolist()):
            result, held[row] = slow_step(core, values, held[row])
            slow.append(result)
        torch.testing.assert_close(output, torch.tensor(slow, dtype=torch.float64))
        torch.testing.assert_close(torch.view_as_complex(state.traces), torch.tensor(held, dtype=torch.complex128))


def test_rates_begin_as_in_the_released_code():
    """There: alpha from log(largest float64) / 1024 - 0.02 down to log(100) / 1024, periods from 1 to 1024."""
    core = make_core("ffm", SIZE)
    fastest = math.log(torch.finfo(torch.float64).max) / 1024 - 0.02
    assert core.alpha[0].item() == pytest.approx(fastest, abs=0.005)
    assert core.alpha[-1].item() == pytest.approx(math.log(100) / 1024)
    assert (2 * math.pi / core.omega).tolist() == pytest.approx([1, 342, 683, 1024])


def test_the_slowest_trace_is_forgotten_after_the_longest_period():
    core = make_core("ffm", SIZE, max_period=100)
    assert math.exp(-100 * core.alpha.min().item()) == pytest.approx(0.01)


def test_traces_never_grow_by_themselves():
    core = randomize(FFM(SIZE, HIDDEN, MEMORY, CONTEXT))
    with torch.no_grad():
        core.alpha[0] = -0.5
    assert bool((core.gamma().abs() < 1).all())


def test_number_of_parameters():
    core = make_core("ffm", 64)
    assert sum(p.numel() for p in core.parameters()) == 36 + 65 * 2 * (32 + 128) + 257 * 128 == 53_732
