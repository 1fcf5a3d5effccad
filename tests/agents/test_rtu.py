"""RTU against its equations, and its gradient, which no cut shortens, against backpropagation through all steps."""

import cmath
import math

import pytest
import torch

from engram.agents.cores.linear.rtu import RTU
from unrolls import random_inputs

SIZE, HIDDEN, UNITS, STEPS = 3, 4, 5, 12


def small():
    torch.manual_seed(0)
    return RTU(SIZE, HIDDEN, UNITS).double()


def test_steps_are_the_equations():
    core = small()
    inputs, reset = random_inputs(SIZE, STEPS)
    outputs, state, _ = core.unroll(inputs, reset, core.initial_state(5))
    for row in range(5):
        h = [0j] * UNITS
        for t in range(STEPS):
            if reset[t, row]:
                h = [0j] * UNITS
            for n in range(UNITS):
                r = math.exp(-math.exp(core.rho[n].item()))
                W = [complex(core.W[n, d].item(), core.W[UNITS + n, d].item()) for d in range(SIZE)]
                driven = sum(w * x for w, x in zip(W, inputs[t, row].tolist(), strict=True))
                h[n] = r * cmath.exp(1j * math.exp(core.tau[n].item())) * h[n] + math.sqrt(1 - r * r) * driven
            units = torch.tensor([v.real for v in h] + [v.imag for v in h], dtype=torch.float64).relu()
            torch.testing.assert_close(outputs[t, row], (core.out.weight @ units + core.out.bias).relu())
        torch.testing.assert_close(state.h[row], torch.tensor([[v.real, v.imag] for v in h], dtype=torch.float64))


def recurrence_gradients(core, inputs, reset, bptt_length):
    outputs, _, _ = core.unroll(inputs, reset, core.initial_state(5), bptt_length)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad((outputs * weights).sum(), [core.rho, core.tau, core.W])


@pytest.mark.parametrize("bptt_length", [1, 3, 5])
def test_gradients_of_the_recurrence_do_not_depend_on_the_cut(bptt_length):
    core = small()
    inputs, reset = random_inputs(SIZE, STEPS, density=0.1)
    wanted = recurrence_gradients(core, inputs.detach(), reset, None)
    seen = recurrence_gradients(core, inputs.detach(), reset, bptt_length)
    for ours, exact in zip(seen, wanted, strict=True):
        torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)


def test_an_unroll_that_begins_with_a_stored_state_has_the_gradient_of_the_whole_episode():
    """Steps as an actor makes them, without gradients; then the learner's unroll: only the last output counts."""
    core = small()
    inputs, reset = random_inputs(SIZE, STEPS, density=0.1)
    inputs, never = inputs.detach(), torch.zeros_like(reset)
    outputs, _, _ = core.unroll(inputs, never, core.initial_state(5))
    wanted = torch.autograd.grad(outputs[-1].sum(), [core.rho, core.tau, core.W])
    state = core.initial_state(5)
    with torch.inference_mode():
        for x in inputs[:-2]:
            _, state = core(x, state)
    stored = type(state)(*(leaf.clone() for leaf in state))
    outputs, _, _ = core.unroll(inputs[-2:], never[-2:], stored)
    seen = torch.autograd.grad(outputs[-1].sum(), [core.rho, core.tau, core.W])
    for ours, exact in zip(seen, wanted, strict=True):
        torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)
