"""Members that learn in one batched call against each alone: metrics, weights, settings, batches with nan."""

import copy
import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores import core_names
from engram.agents.cores.core import unroll_step_by_step
from engram.agents.cores.registry import core_parameters
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.population import vectorized
from engram.learners.population.vectorized import learn_together
from small_cores import SMALL

EVEN = LearnerConfig(optimizer="rmsprop_tf", eps=0.1, lr=0.05, lr_schedule="constant", max_grad_norm=0.3)
"""Steps in proportion to the gradient: Adam's first ones are as long for a gradient that is nothing but rounding."""


def small(name):
    return AgentConfig(core=name, core_args={key: SMALL[key] for key in SMALL if key in core_parameters(name)})


def members(agent, configs, updates=2):
    """Learners with weights of their own, the same learners again, and batches for each update and member."""
    environment = {"path_lengths": 1, "num_distractors": 0, "max_steps": 10}
    factory = ActorFactory(env="boxworld", env_args=environment, agent=agent, num_envs=4, unroll_length=12, seed=2)
    actor = factory.make_actor(0)
    actor.unroll()
    ours = []
    for number, config in enumerate(configs):
        torch.manual_seed(number)
        ours.append(Learner(factory.make_agent(actor.batch), config, 10_000))
    theirs = [Learner(copy.deepcopy(each.agent), each.config, 10_000) for each in ours]
    rounds = [[actor.unroll() for _ in configs] for _ in range(updates)]
    for batch in itertools.chain(*rounds):
        batch.env.reward.normal_()  # environments have few
    return ours, theirs, rounds


def compare(ours, theirs, rounds):
    """Learn both ways: metrics are the same, and weights but for a hundredth of the way that they have moved."""
    before = [copy.deepcopy(each.agent.state_dict()) for each in ours]
    for batches in rounds:
        learn_together(ours, batches)
        for learner, batch in zip(theirs, batches, strict=True):
            learner.learn(batch)
    for one, other, first in zip(ours, theirs, before, strict=True):
        assert (one.steps, one.updates, one.skipped) == (other.steps, other.updates, other.skipped)
        for a, b in zip(one.read(), other.read(), strict=True):
            assert a.keys() == b.keys()
            assert all(math.isclose(a[k], b[k], rel_tol=1e-3, abs_tol=1e-4) or math.isnan(b[k]) for k in a)
        here, there, begun = (flat(each) for each in (one.agent.state_dict(), other.agent.state_dict(), first))
        assert (here - there).norm() < 0.01 * (there - begun).norm()


def flat(weights):
    return torch.cat([each.flatten() for each in weights.values()])


@pytest.mark.integration
@pytest.mark.parametrize("name", core_names())
def test_every_core_learns_what_it_would_alone(name):
    configs = [replace(EVEN, discount=discount) for discount in (0.9, 0.95, 0.99)]
    ours, theirs, rounds = members(small(name), configs)
    if name in ("fwm", "mnm-p", "mnm-g"):  # rounding grows in their memories, so the same form on both sides
        for learner in theirs:
            learner.agent.core.unroll = partial(unroll_step_by_step, learner.agent.core)
    compare(ours, theirs, rounds)


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ["vtrace", "a2c", "ppo"])
def test_every_algorithm_with_all_that_an_agent_may_have(algorithm):
    agent = replace(
        small("gru"),
        torso=TorsoConfig(
            normalize_observations=True, embedding_size=8, symbol_size=4, balance_symbols=True, normalize_features=True
        ),
        previous_action=True,
        previous_reward=True,
        time_horizon=10,
        normalize_returns=True,
        prediction_size=6,
    )
    compare(*members(agent, [replace(EVEN, algorithm=algorithm)] * 2))


def test_settings_of_the_loss_and_the_optimizer_are_each_members_own():
    configs = [
        replace(EVEN, entropy_cost=0.5, lr=0.1),
        replace(EVEN, value_cost=0.1, max_grad_norm=0.01, entropy_schedule="linear"),
        replace(EVEN, discount=0.5, rmsprop_decay=0.9),
    ]
    compare(*members(small("concrete"), configs))


def test_members_that_learn_by_other_settings_are_not_mixed(monkeypatch):
    sizes = []
    real = vectorized.gradients
    monkeypatch.setattr(vectorized, "gradients", lambda asked: sizes.append(len(asked)) or real(asked))
    other = replace(EVEN, algorithm_args={"clip_rho": 0.5})
    compare(*members(small("lstm"), [EVEN, other, replace(EVEN, discount=0.9), other, replace(EVEN, reward_clip=0.1)]))
    assert sizes == [2, 2, 1] * 2


def test_a_batch_that_is_not_finite_costs_its_own_member_an_update():
    ours, theirs, rounds = members(small("lstm"), [EVEN] * 3)
    rounds[0][1].env.reward[3] = math.nan
    compare(ours, theirs, rounds)
    assert [each.skipped for each in ours] == [0, 1, 0]
