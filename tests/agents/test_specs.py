"""Distributions of actions against torch.distributions, and the agent's pass over an environment of real actions."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from engram.actors.factory import ActorFactory
from engram.agents import specs
from engram.agents.config import AgentConfig

BOX = specs.BoxSpec(3)


def logits(seed: int) -> torch.Tensor:
    return torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(values: torch.Tensor) -> Normal:
    return Normal(values[..., :3], values[..., 3:].exp())


def test_a_box_is_independent_gaussians() -> None:
    ours, theirs = logits(1), logits(2)
    action = torch.randn(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(specs.log_probability(BOX, ours, action), gaussian(ours).log_prob(action).sum(-1))
    torch.testing.assert_close(specs.entropy(BOX, ours), gaussian(ours).entropy().sum(-1))
    expected = kl_divergence(gaussian(theirs), gaussian(ours)).sum(-1)
    torch.testing.assert_close(specs.kl_divergence(BOX, theirs, ours), expected)
    assert torch.equal(specs.best(BOX, ours), ours[..., :3])


def test_samples_have_the_mean_and_deviation_that_were_asked_for() -> None:
    wanted = torch.tensor([1.0, -2.0, 0.0, 0.0, -1.0, 1.0])
    drawn = specs.sample(BOX, wanted.expand(20_000, 6), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), wanted[:3], rtol=0, atol=0.06)
    torch.testing.assert_close(drawn.std(0).log(), wanted[3:], rtol=0, atol=0.03)


@pytest.mark.parametrize("previous_action", [False, True])
def test_actor_and_learner_agree_about_real_actions(previous_action: bool) -> None:
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, previous_action=previous_action)
    factory = ActorFactory(
        env="Pendulum-v1", env_args={"max_episode_steps": 7}, agent=config, num_envs=3, unroll_length=20, seed=1
    )
    actor = factory.make_actor(0)
    with torch.no_grad():
        actor.agent.log_deviation.copy_(torch.tensor([-0.5]))
    unroll = actor.unroll()
    assert unroll.agent.action.shape == (20, 3, 1)
    assert unroll.env.truncated.any()
    out = actor.agent.unroll(unroll.env, unroll.agent.action, unroll.initial_state)
    torch.testing.assert_close(out.logits[:-1], unroll.agent.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.value[:-1], unroll.agent.value, rtol=1e-4, atol=1e-5)
    assert (unroll.agent.logits[..., 1] == -0.5).all()
