"""Running moments against numpy over all that was shown, and a value head of changing units and unchanged values."""

import numpy as np
import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.normalization import Moments, RescaledHead
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner


def test_moments_are_those_of_everything_shown() -> None:
    rng = np.random.default_rng(0)
    shown = [rng.normal(3, 5, (n, 2)).astype(np.float32) for n in (4, 1, 30)]
    moments = Moments(2, memory=1e6, floor=1e-3)
    for values in shown:
        moments.update(torch.from_numpy(values), float(len(values)))
    everything = np.concatenate(shown)
    np.testing.assert_allclose(moments.mean.numpy(), everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.deviation.numpy(), everything.std(0), rtol=1e-5)
    before = moments.mean.clone()
    moments.update(torch.tensor([[1.0, torch.nan]]), 1.0)
    assert torch.equal(moments.mean, before)


@pytest.mark.parametrize("large", [1e18, 1e25, 3.4e38])
def test_a_feature_whose_squares_overflow_stays_as_it_was_and_the_others_are_counted(large: float) -> None:
    moments, alone = Moments(2, memory=1e6, floor=1e-3), Moments(1, memory=1e6, floor=1e-3)
    for value in (1.0, large, -large, 3.0):
        other = torch.tensor([[2.0], [value % 7], [5.0]])
        moments.update(torch.cat([torch.tensor([[1.0], [value], [2.0]]), other], 1), 3.0)
        alone.update(other, 3.0)
        assert moments.mean.isfinite().all()
        assert moments.deviation.isfinite().all()
    assert torch.equal(moments.mean[1:], alone.mean)
    assert torch.equal(moments.deviation[1:], alone.deviation)
    assert torch.equal(moments.weight, alone.weight)
    assert large < 1e19 or moments.deviation[0] < 10


@pytest.mark.parametrize("large", [1e18, 1e25, 3.4e38])
@pytest.mark.parametrize("at", [0, 3])
def test_one_large_return_leaves_the_head_finite(large: float, at: int) -> None:
    torch.manual_seed(0)
    head, valid = RescaledHead(4, 1), torch.ones(50, dtype=torch.bool)
    for update in range(6):
        returns = torch.randn(50)
        if update == at:
            returns[7] = large
        head.renormalize(returns, valid)
        assert all(part.isfinite().all() for part in head.state_dict().values())
    assert large < 1e19 or head.unit < 10


def test_what_is_long_past_is_forgotten() -> None:
    moments = Moments(1, memory=10.0, floor=1e-3)
    for _ in range(20):
        moments.update(torch.tensor([[100.0], [102.0]]), 1.0)
    for _ in range(60):
        moments.update(torch.tensor([[0.0], [4.0]]), 1.0)
    assert moments.mean.item() == pytest.approx(2.0 + 99 * 0.9**60, rel=1e-3)
    assert moments.weight.item() == 10.0


def test_new_units_leave_every_value_as_it_was() -> None:
    torch.manual_seed(0)
    head, inputs = RescaledHead(4, 1), torch.randn(6, 4)
    for scale in (1.0, 1000.0, 0.1):
        before = head(inputs)
        head.renormalize(scale * torch.randn(50) + 7 * scale, torch.ones(50, dtype=torch.bool))
        torch.testing.assert_close(head(inputs), before, rtol=1e-3, atol=1e-3)
    assert not torch.equal(head.unit, torch.ones(1))


def learner(algorithm: str, scale: float) -> tuple[Learner, dict[str, float]]:
    """Two updates on one environment whose rewards are `scale` times as large."""
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, normalize_returns=True)
    factory = ActorFactory(env="cued-catch", agent=config, num_envs=6, unroll_length=12, seed=2)
    torch.manual_seed(0)
    agent = factory.make_agent(factory.make_batch())
    unroll = factory.make_actor(0).unroll()
    reward = torch.randn(unroll.env.reward.shape, generator=torch.Generator().manual_seed(1))
    unroll = unroll._replace(env=unroll.env._replace(reward=scale * (reward + 1)))
    with torch.no_grad():
        agent.value.weight.zero_()
        agent.value.bias.zero_()
    made = Learner(agent, LearnerConfig(algorithm=algorithm), 10_000)
    made.step(unroll)
    return made, made.step(unroll)


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ["vtrace", "a2c", "ppo"])
def test_learning_does_not_depend_on_the_size_of_rewards(algorithm: str) -> None:
    (small, small_metrics), (large, large_metrics) = learner(algorithm, 1.0), learner(algorithm, 1000.0)
    for name in ("loss/value", "loss/policy", "learner/grad_norm"):
        assert large_metrics[name] == pytest.approx(small_metrics[name], rel=1e-2, abs=1e-4), name
    assert large.agent.units is not None
    assert small.agent.units is not None
    assert large.agent.units.unit.item() == pytest.approx(1000 * small.agent.units.unit.item(), rel=1e-2)


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ["vtrace", "a2c", "ppo"])
def test_learning_goes_on_after_one_reward_that_overflows(algorithm: str) -> None:
    made, _ = learner(algorithm, 1.0)
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, normalize_returns=True)
    unroll = ActorFactory(env="cued-catch", agent=config, num_envs=6, unroll_length=12, seed=2).make_actor(0).unroll()
    reward = unroll.env.reward.clone()
    reward[4, 2] = 1e30
    made.step(unroll._replace(env=unroll.env._replace(reward=reward)))
    assert made.skipped > 0
    skipped, before = made.skipped, made.agent.policy.weight.clone()
    assert made.step(unroll)["loss/total"] == pytest.approx(0, abs=1e3)
    assert made.skipped == skipped
    assert not torch.equal(made.agent.policy.weight, before)


def test_observations_of_any_unit_look_the_same_to_the_network() -> None:
    torso = TorsoConfig(normalize_observations=True, embedding_size=8)
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, torso=torso)
    factory = ActorFactory(env="CartPole-v1", agent=config, num_envs=4, unroll_length=30, seed=2)
    actor = factory.make_actor(0)
    unroll = actor.unroll()
    observation = unroll.env.observation
    actor.agent.observe(unroll.env._replace(observation=1000 * observation + 5))
    shown = actor.agent.torso.torso(1000 * observation[0] + 5)
    flat = observation.flatten(0, 1)
    expected = ((observation[0] - flat.mean(0)) / flat.std(0, correction=0)).clamp(-10, 10)
    torch.testing.assert_close(shown, expected, rtol=1e-2, atol=1e-2)


def test_features_reach_the_memory_with_mean_0_and_deviation_1() -> None:
    torso = TorsoConfig(normalize_features=True, normalize_observations=True, embedding_size=8, embedding_bias=3.0)
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, torso=torso)
    factory = ActorFactory(env="CartPole-v1", agent=config, num_envs=4, unroll_length=30, seed=2)
    agent = factory.make_actor(0).agent
    env = factory.make_actor(0).unroll().env
    observation = env.observation
    before = agent.torso(observation.flatten(0, 1))
    assert before.mean(0).min() > 1
    agent.observe(env)
    features = agent.torso(observation.flatten(0, 1))
    torch.testing.assert_close(features.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(8), atol=1e-3, rtol=0)


def test_repeated_observations_count_as_often_as_they_were_seen() -> None:
    """Nine of ten observations of a grid environment repeat: the torso sees each once, the mean counts them all."""
    torso = TorsoConfig(normalize_features=True, embedding_size=8, conv_channels=())
    config = AgentConfig(core="gru", core_args={"hidden_size": 8}, torso=torso)
    factory = ActorFactory(env="cued-catch", agent=config, num_envs=32, unroll_length=20, seed=2)
    agent = factory.make_actor(0).agent
    env = factory.make_actor(0).unroll().env
    mean = agent.torso.torso(env.observation.flatten(0, 1)).mean(0)
    agent.observe(env)
    torch.testing.assert_close(agent.torso.moments.mean, mean, atol=1e-5, rtol=1e-5)
