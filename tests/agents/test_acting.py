"""Steps that are prepared for acting equal the equations."""

import pytest
import torch

from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.agents.cores.core import map_state, reset_state, state_leaves
from engram.agents.cores.fast import bf16
from engram.agents.cores.registry import make_core
from engram.agents.specs import ArraySpec, ChoiceSpec
from engram.agents.values import EnvOutput
from engram.base import compiled

B = 5
POOLS = {"pool_size": 16, "num_pools": 4, "viewport_size": 3, "summarizer_size": 8}
RMC = {"num_slots": 2, "num_heads": 2, "head_size": 8}
CORES = [
    ("lstm", {"hidden_size": 24}),
    ("lstm", {"hidden_size": 128}),
    ("rmc", RMC | {"head_size": 64}),
    ("rmc", RMC | {"gate": "unit", "mlp_layers": 1}),
    ("rmc", RMC | {"gate": None}),
    ("fwm", {"hidden_size": 16, "memory_size": 5}),
    ("fwm", {"hidden_size": 16, "memory_size": 6, "write_scale": 0.25, "beta_bias": 1.0}),
    ("mnm-p", {"hidden_size": 64, "memory_size": 32}),
    ("mnm-g", {"hidden_size": 16, "memory_size": 8, "layer_norm": True}),
    ("concrete", POOLS),
    ("parallel", POOLS | {"unit_views": True}),
    ("concrete", POOLS | {"viewport_size": 1}),
]
SIZE = 140  # Input values, enough for bfloat16 factors


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.setattr(compiled, "enabled", True)


def made(name, options):
    torch.manual_seed(0)
    core = make_core(name, SIZE, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return core


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("name", "options"), CORES)
def test_prepared_steps_equal_the_equations(name, options, rounded):
    core = made(name, options)
    with torch.inference_mode(), bf16.products(rounded):
        initial = state = core.initial_state(B)
        assert core.fast_step(B) is not None
        step, most = core.acting(state, B), 1e-3 if rounded else 1e-4 if name == "fwm" else 1e-5
        for _ in range(12):
            x, reset = torch.randn(B, SIZE), torch.rand(B) < 0.2
            expected, other = core(x, reset_state(state, initial, reset))
            output, state = step(x, reset, state)
            for actual, wanted in zip([output, *state_leaves(state)], [expected, *state_leaves(other)], strict=True):
                torch.testing.assert_close(actual, wanted, rtol=most, atol=most)


@pytest.mark.parametrize("name", ["lstm", "rmc", "fwm", "mnm-p", "concrete"])
def test_a_step_with_a_hook_or_another_state_is_that_of_the_equations(name):
    calls = []
    core = made(name, dict(CORES)[name])
    core.register_forward_hook(lambda *_: calls.append(1))
    x, reset = torch.randn(B, SIZE), torch.ones(B, dtype=torch.bool)
    with torch.inference_mode():
        core.acting(core.initial_state(B), B)(x, reset, core.initial_state(B))
        assert calls == [1]
        plain = made(name, dict(CORES)[name])
        wide = map_state(lambda leaf: torch.cat([leaf, leaf], -1), plain.initial_state(B))
        with pytest.raises((RuntimeError, ValueError)):
            plain.acting(wide, B)(x, torch.zeros(B, dtype=torch.bool), wide)


def test_inputs_of_another_size_are_refused():
    core = made("lstm", {"hidden_size": 24})
    state, reset = core.initial_state(B), torch.zeros(B, dtype=torch.bool)
    with torch.inference_mode(), pytest.raises(ValueError, match="expected float32 of 140 values"):
        core.acting(state, B)(torch.randn(B, SIZE + 1), reset, state)


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_prepared_agent_samples_as_the_equations(rescaled, masks, greedy):
    torch.manual_seed(0)
    config = AgentConfig(core="lstm", core_args={"hidden_size": 24}, normalize_returns=rescaled, previous_action=True)
    agent = Agent(ArraySpec((3,)), ChoiceSpec((4,)), config)
    agent.greedy = greedy
    if agent.units is not None:
        agent.units.moments.deviation.fill_(3.0)
        agent.units.moments.mean.fill_(-2.0)
    plain, prepared = (torch.Generator().manual_seed(1) for _ in range(2))
    state = other = agent.initial_state(B)
    for _ in range(8):
        mask = torch.rand(B, 4) < 0.5 if masks else None
        if mask is not None:
            mask[:, 2] = True
        ends = torch.rand(B) < 0.2, torch.rand(B) < 0.1
        env = EnvOutput(torch.randn(B, 3), torch.randn(B), *ends, mask)
        agent.end_unroll()
        expected, other = agent.step(env, other, plain)
        agent.begin_unroll(99)
        output, state = agent.step(env, state, prepared)
        assert torch.equal(output.action, expected.action)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state_leaves(state), state_leaves(other), rtol=1e-5, atol=1e-5)
