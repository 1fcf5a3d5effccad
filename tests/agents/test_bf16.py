"""Matrix multiplications with bfloat16 factors on the CPU: exact sums, one function for acting and learning."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from engram.actors.factory import ActorFactory
from engram.agents import kernels
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores.core import reset_state
from engram.agents.cores.fast import bf16, blas, brgemm
from engram.agents.cores.registry import make_core
from engram.launch.config.run_config import on_device
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.loss import evaluate

CPU = torch.device("cpu")
CORES = {
    "lstm": {"hidden_size": 64},
    "gru": {"hidden_size": 96},
    "rmc": {"num_slots": 2, "num_heads": 4, "head_size": 32},
    "mnm-p": {"hidden_size": 64, "memory_size": 32},
}
"""Cores with a route of their own, large enough for it; all others multiply by `kernels.linear`."""
EACH = [name if name in ("lstm", "gru") else pytest.param(name, marks=pytest.mark.nightly) for name in CORES]
"""The routes of the others take a minute to compile."""
LINEAR = {"concrete": {}, "parallel": {}, "fwm": {"hidden_size": 128, "memory_size": 64}}
"""Cores whose large layers multiply by `kernels.linear`, for one step in other shapes than for an unroll."""
needs_routine = pytest.mark.usefixtures("routine")


@pytest.fixture(scope="module")
def routine():
    if not bf16.routine():
        pytest.skip("this CPU or torch multiplies no bfloat16")


def rounded(x):
    return x.bfloat16().double()


@needs_routine
@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 64, 20), (33, 257, 96), (200, 2150, 31), (64, 128, 128)])
@pytest.mark.parametrize("transposed", ["neither", "weight", "both"])
def test_factors_are_rounded_and_sums_are_float32(rows, terms, columns, transposed):
    """Both are transposed in the gradient of a weight."""
    torch.manual_seed(0)
    x = torch.randn(terms, rows).t() if transposed == "both" else torch.randn(rows, terms)
    weight, bias = torch.randn(terms, columns).t(), torch.randn(columns)
    weight = weight.contiguous() if transposed == "neither" else weight
    torch.testing.assert_close(
        bf16.product(x, weight, bias),
        (rounded(x) @ rounded(weight).t() + bias.double()).float(),
        rtol=1e-5,
        atol=1e-4,
    )


@needs_routine
def test_numbers_that_are_not_finite_stay_so():
    x, weight = torch.ones(3, 128), torch.ones(128, 128)
    x[0, 5], x[1, 7] = float("nan"), float("inf")
    found = bf16.product(x, weight)
    assert found[0].isnan().all()
    assert found[1].isinf().all()
    assert (found[2] == 128).all()


@needs_routine
def test_large_weights_alone_are_rounded_whatever_the_batch():
    torch.manual_seed(0)
    small, large, x = torch.randn(60, 128), torch.randn(128, 128), torch.randn(300, 128)
    with bf16.products():
        assert torch.equal(kernels.linear(x, small), F.linear(x, small))
        whole, one = kernels.linear(x, large), kernels.linear(x[:1], large)
    torch.testing.assert_close(whole, (rounded(x) @ rounded(large).t()).float(), rtol=1e-5, atol=1e-4)
    assert torch.equal(whole[:1], one)
    assert torch.equal(kernels.linear(x[:1], large), F.linear(x[:1], large))


@needs_routine
def test_a_changed_weight_is_packed_again_while_acting():
    weight, x = torch.nn.Parameter(torch.ones(128, 128)), torch.ones(1, 128)
    with bf16.products(), torch.inference_mode():
        assert kernels.linear(x, weight)[0, 0] == 128
        weight.mul_(2)
        assert kernels.linear(x, weight)[0, 0] == 256


@needs_routine
def test_a_stack_of_weights_is_packed_once_per_version_of_any_of_them():
    first, second = (torch.nn.Parameter(torch.ones(128, 128)) for _ in range(2))

    def stack() -> torch.Tensor:
        return bf16.once(bf16.packed, bf16.once(bf16.stacked, first, second))

    with torch.inference_mode():
        words = stack()
        assert stack() is words
        second.mul_(2)
        assert torch.equal(stack()[1], bf16.packed(second))


@needs_routine
def test_gradients_are_those_of_float32_up_to_rounding():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(70, 130), torch.randn(150, 130), torch.randn(150)
    found = []
    for on in (False, True):
        leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
        with bf16.products(on):
            y = kernels.linear(*leaves)
        found.append(torch.autograd.grad(y.sin().sum(), leaves))
    for exact, near in zip(*found, strict=True):
        assert 0 < (exact - near).norm() / exact.norm() < 0.15  # sin turns the rounding of y into a large one


@needs_routine
@pytest.mark.parametrize("name", EACH)
def test_a_core_acts_as_it_learns_and_its_gradient_is_near_that_of_float32(name):
    torch.manual_seed(0)
    core = make_core(name, 130, **CORES[name])
    inputs, reset = torch.randn(6, 20, 130), torch.rand(6, 20) < 0.2
    above, found = torch.randn(6, 20, core.output_size), []
    for on in (False, True):
        with bf16.products(on):
            outputs, _, _ = core.unroll(inputs, reset, core.initial_state(20))
        gradients = torch.autograd.grad((outputs * above).sum(), list(core.parameters()), allow_unused=True)
        found.append((outputs, torch.cat([each.flatten() for each in gradients if each is not None])))
    (plain, exact), (outputs, near) = found
    assert 0 < (plain - outputs).abs().max() < 0.05
    assert 0 < (exact - near).norm() / exact.norm() < 0.06
    acted, state, initial = [], core.initial_state(20), core.initial_state(20)
    with bf16.products(), torch.inference_mode():
        for now, fresh in zip(inputs, reset, strict=True):
            output, state = core(now, reset_state(state, initial, fresh))
            acted.append(output)
    assert (torch.stack(acted) - outputs).abs().max() < 2e-3


@needs_routine
@pytest.mark.parametrize("name", ["concrete", "parallel"])
def test_few_viewports_of_large_pools_round_in_an_unroll_as_in_a_step(name):
    torch.manual_seed(0)
    core = make_core(name, 140, pool_size=130, num_pools=3, viewport_size=9)
    inputs, reset, start = torch.randn(6, 3, 140), torch.rand(6, 3) < 0.2, core.initial_state(3)
    with bf16.products(), torch.inference_mode():
        outputs, last, _ = core.unroll(inputs, reset, start)
        acted, state = [], start
        for now, fresh in zip(inputs, reset, strict=True):
            output, state = core.acting(start, 3)(now, fresh, state)
            acted.append(output)
    torch.testing.assert_close(outputs, torch.stack(acted), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last.pools, state.pools, rtol=1e-5, atol=1e-5)


def acting(precision, core="lstm"):
    """An actor of 16 environments whose unrolls have 20 steps."""
    agent = AgentConfig(core=core, core_args=(CORES | LINEAR)[core], torso=TorsoConfig(embedding_size=128))
    factory = ActorFactory(env="boxworld", agent=agent, num_envs=16, unroll_length=20, seed=1, precision=precision)
    torch.manual_seed(1)
    return factory.make_actor(0)


@needs_routine
@pytest.mark.parametrize("core", [*EACH, *LINEAR])
def test_actor_and_learner_compute_the_same_policy(core):
    """Importance ratios of the weights that acted are 1, although batches differ."""
    actor = acting("bf16", core)
    with torch.no_grad():
        actor.agent.policy.weight.mul_(10)  # a policy with preferences
        unroll = actor.unroll()
        now = evaluate(actor.agent, unroll, LearnerConfig(precision="bf16"))
    log_rho = now.log_policy - now.log_behavior
    assert log_rho.abs().max() < 1e-2
    assert log_rho.mean().abs() < 1e-3


@needs_routine
@pytest.mark.parametrize("core", EACH)
def test_a_whole_update_is_near_that_of_float32_and_repeats_bit_for_bit(core):
    """RMSProp with a large epsilon: the change of the weights is nearly proportional to the clipped gradient."""
    unroll, changes = acting("float32", core).unroll(), []
    config = LearnerConfig(optimizer="rmsprop_tf", eps=1.0, lr=1e-2)
    for precision in ("float32", "bf16", "bf16"):
        agent = acting(precision, core).agent
        before = torch.nn.utils.parameters_to_vector(agent.parameters()).detach().clone()
        metrics = Learner(agent, replace(config, precision=precision), 10**6).step(unroll)
        changes.append((metrics, torch.nn.utils.parameters_to_vector(agent.parameters()).detach() - before))
    (plain, exact), (metrics, near), (again, same) = changes
    assert metrics == again
    assert torch.equal(near, same)
    assert metrics["loss/total"] == pytest.approx(plain["loss/total"], rel=0.05, abs=0.01)
    assert 0 < (exact - near).norm() / exact.norm() < 0.1


def test_a_precision_that_the_device_does_not_have_is_refused(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    for cached in (blas.instructions, bf16.routine, brgemm.pays):
        cached.cache_clear()
    try:
        assert on_device(LearnerConfig(precision="auto"), CPU).precision == "float32"
        with pytest.raises(
            ValueError, match=r"precision is 'bf16'; allowed on this CPU \(no AVX512-BF16 or AMX\): auto, fl"
        ):
            on_device(LearnerConfig(precision="bf16"), CPU)
        with pytest.raises(ValueError, match="precision is 'tf32'; allowed on a CPU: auto, float32, bf16"):
            on_device(LearnerConfig(precision="tf32"), CPU)
        with bf16.products():
            assert not bf16.active()
    finally:
        for cached in (blas.instructions, bf16.routine, brgemm.pays):
            cached.cache_clear()
