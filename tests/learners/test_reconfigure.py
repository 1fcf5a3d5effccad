"""A learner whose configuration changes in mid-run: changes are applied, survive loaded weights, and are read back."""

import copy
from dataclasses import replace

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.config import AgentConfig
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

FACTORY = ActorFactory(
    env="cued-catch", agent=AgentConfig(core="lstm", core_args={"hidden_size": 8}), num_envs=4, unroll_length=6, seed=2
)


def make(seed: int = 0, **config: object) -> tuple[Learner, Unroll]:
    torch.manual_seed(seed)
    agent = FACTORY.make_agent(FACTORY.make_batch())
    actor = FACTORY.make_actor(0)
    return Learner(agent, LearnerConfig(**config), total_steps=1000), actor.unroll()  # type: ignore[arg-type]


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.agent.parameters()])


@pytest.mark.integration
def test_taking_over_weights_does_not_take_over_settings() -> None:
    """The trap of restored checkpoints: the other optimizer's learning rate and epsilon come with its moments."""
    other, batch = make(1, lr=0.1, eps=1e-3, entropy_cost=0.5)
    other.step(batch)
    learner, batch = make(0, lr=0.01, eps=1e-6, entropy_cost=0.1)
    learner.step(batch)
    counters = (learner.updates, learner.steps)
    learner.take_over(other.agent.state_dict(), other.optimizer.state_dict())
    assert torch.equal(weights(learner), weights(other))
    moments = [s["exp_avg"] for s in learner.optimizer.state.values()]
    assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(moments, other.optimizer.state.values(), strict=True))
    assert (learner.updates, learner.steps) == counters
    assert learner.optimizer.param_groups[0]["eps"] == 1e-6
    learner.reconfigure(replace(learner.config, lr=0.02, eps=1e-5))
    assert learner.optimizer.param_groups[0]["eps"] == 1e-5
    metrics = learner.step(batch)
    assert metrics["learner/lr"] == learner.optimizer.param_groups[0]["lr"] == 0.02 * (1 - counters[1] / 1000)


def test_what_was_taken_over_is_not_shared() -> None:
    other, batch = make(1)
    other.step(batch)
    learner, _ = make(0)
    learner.take_over(other.agent.state_dict(), other.optimizer.state_dict())
    before = copy.deepcopy(other.optimizer.state_dict()["state"]), weights(other)
    learner.step(batch)
    assert torch.equal(weights(other), before[1])
    for now, then in zip(other.optimizer.state_dict()["state"].values(), before[0].values(), strict=True):
        assert all(torch.equal(now[name], then[name]) for name in now)


@pytest.mark.parametrize("algorithm", ["vtrace", "a2c", "ppo"])
def test_a_changed_configuration_is_what_the_next_update_uses(algorithm: str) -> None:
    """Reconfigured in mid-run = configured so from the start, for settings of the loss and of the optimizer."""
    changes = {
        "lr": 3e-3,
        "entropy_cost": 0.2,
        "discount": 0.7,
        "max_grad_norm": 0.1,
        "bptt_length": 2,
        "adam_beta1": 0.3,
    }
    changed, batch = make(0, algorithm=algorithm)
    changed.reconfigure(replace(changed.config, **changes))
    from_the_start, _ = make(0, algorithm=algorithm, **changes)
    plain, _ = make(0, algorithm=algorithm)
    for learner in (changed, from_the_start, plain):
        learner.step(batch)
        learner.step(batch)
    assert torch.equal(weights(changed), weights(from_the_start))
    assert not torch.equal(weights(changed), weights(plain))


def test_rmsprops_numbers_reach_the_optimizer() -> None:
    learner, batch = make(0, optimizer="rmsprop_tf", eps=0.1, rmsprop_decay=0.9)
    learner.reconfigure(replace(learner.config, rmsprop_decay=0.5, rmsprop_momentum=0.3, eps=0.2))
    learner.step(batch)
    group = learner.optimizer.param_groups[0]
    assert (group["decay"], group["momentum"], group["eps"]) == (0.5, 0.3, 0.2)
