"""Learning depends neither on the unit of rewards nor on that of observations."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.normalization import Moments, RescaledHead
from engram.launch.train import command
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

ALGORITHMS = ["vtrace", "a2c", "ppo"]
POWERS = [-20, 20]
"""Units of 2^-20 and 2^20, about 1e-6 and 1e6: products with them are exact."""


def factory(**options: object) -> ActorFactory:
    torso = TorsoConfig(normalize_observations=True, embedding_size=8)
    agent = AgentConfig(
        core="gru", core_args={"hidden_size": 8}, torso=torso, normalize_returns=True, prediction_size=8
    )
    return ActorFactory(env="CartPole-v1", agent=replace(agent, **options), num_envs=6, unroll_length=12, seed=2)


def unrolls(made: ActorFactory, rewards: list[float]) -> Iterator[Unroll]:
    """Unrolls of an untrained agent, with random rewards of these sizes."""
    actor, generator = made.make_actor(0), torch.Generator().manual_seed(1)
    for size in rewards:
        unroll = actor.unroll()
        reward = size * (torch.rand(unroll.env.reward.shape, generator=generator) < 0.3)
        yield unroll._replace(env=unroll.env._replace(reward=reward))


def learned(made: ActorFactory, algorithm: str, rewards: list[float], reward: float, observation: float) -> Agent:
    """The agent after an update from each unroll, with rewards and observations in other units."""
    torch.manual_seed(0)
    agent = made.make_agent(made.make_batch())
    learner = Learner(agent, LearnerConfig(algorithm=algorithm, lr=1e-3), 10_000)
    for unroll in unrolls(made, rewards):
        env = unroll.env
        learner.step(
            unroll._replace(env=env._replace(reward=reward * env.reward, observation=observation * env.observation))
        )
    assert learner.skipped == 0
    return agent


def assert_same(one: Agent, other: Agent) -> None:
    """Equal parameters, but for what is in the units themselves: the running moments, which are buffers."""
    others = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter, others[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.integration
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(
    ("algorithm", "rewards"), [(name, [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]][k % 2]) for k, name in enumerate(ALGORITHMS)]
)
def test_updates_do_not_depend_on_the_unit_of_rewards(algorithm: str, rewards: list[float], power: int) -> None:
    made = factory(previous_reward=True, predict="reward")
    plain = learned(made, algorithm, rewards, 1.0, 1.0)
    assert_same(plain, learned(made, algorithm, rewards, 2.0**power, 1.0))


@pytest.mark.integration
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_updates_do_not_depend_on_the_unit_of_observations(algorithm: str, power: int) -> None:
    made = factory()
    plain = learned(made, algorithm, [1.0, 1.0, 1.0], 1.0, 1.0)
    assert_same(plain, learned(made, algorithm, [1.0, 1.0, 1.0], 1.0, 2.0**power))


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_constant_feature_is_zero_and_what_is_new_in_it_stays_bounded(unit: float) -> None:
    moments = Moments(3, memory=1e6)
    assert torch.equal(moments(torch.full((2, 3), 7 * unit)), torch.zeros(2, 3))
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    for part in noise.split(50):
        shown = torch.cat([torch.zeros_like(part), torch.full_like(part, 0.3), part], 1) * unit
        moments.update(shown, 50.0)
    seen = moments(torch.tensor([[0.0, 0.3, 1.0], [1.0, 0.6, 1.0]]) * unit)
    torch.testing.assert_close(seen[0, :2], torch.zeros(2), atol=0.05, rtol=0)
    assert seen.abs().max() <= 10
    assert seen[0, 2] == pytest.approx((1 - noise.mean().item()) / noise.std(correction=0).item(), rel=1e-3)


def test_values_of_equal_returns_keep_a_unit_of_the_size_of_rewards() -> None:
    head, valid = RescaledHead(4, 1), torch.ones(40, dtype=torch.bool)
    for _ in range(30):
        head.measure(torch.full((40,), 1e-4), valid)
        head.renormalize(torch.full((40,), 5e-4), valid)
    assert head.unit.item() == pytest.approx(1e-6)


def test_a_head_of_an_older_version_has_the_unit_it_was_trained_with() -> None:
    head, other = RescaledHead(4, 1), RescaledHead(4, 1)
    old = {name: value for name, value in head.state_dict().items() if name != "reward"}
    other.load_state_dict(old)
    assert other.reward.item() == 1.0
    torch.testing.assert_close(other(torch.ones(4)), head(torch.ones(4)))


@pytest.mark.parametrize("payoffs", [(1.0, 3.0), (5.0, 10.0)])
def test_the_core_tells_previous_rewards_of_any_size_apart_and_a_clip_does_not(payoffs: tuple[float, float]) -> None:
    seen: dict[float, torch.Tensor] = {}
    for clip in (0.0, 1.0):
        made = factory(previous_reward=True, previous_reward_clip=clip)
        agent = made.make_agent(made.make_batch())
        unroll = next(unrolls(made, [1.0]))
        reward = torch.where(unroll.env.reward > 0, payoffs[1], payoffs[0])
        agent.observe(unroll.env._replace(reward=reward))
        inputs = agent._inputs(torch.zeros(2, 0), torch.zeros(2), torch.tensor(payoffs), torch.zeros(2))
        seen[clip] = inputs[:, -1]
    assert seen[1.0].tolist() == [1.0, 1.0]
    assert seen[0.0][0] < -0.3
    assert seen[0.0][1] > 0.3


class Name(gymnasium.Env):
    """Ten steps; each shows one of two values, which the action names, for a reward of one unit."""

    def __init__(self, reward_unit: float, observation_unit: float) -> None:
        self.observation_space, self.action_space = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2)
        self.reward_unit, self.observation_unit = reward_unit, observation_unit

    def _observation(self) -> np.ndarray:
        self.value = int(self.np_random.integers(2))
        return np.array([self.observation_unit * (2 * self.value - 1)], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = self.reward_unit * float(action == self.value)
        self.time += 1
        return self._observation(), reward, self.time == 10, False, {}


@pytest.mark.integration
def test_defaults_learn_a_task_in_small_units(tmp_path: Path) -> None:
    words = ["--env", f"{__name__}:Name", "--env-args", "reward_unit=1e-6", "observation_unit=1e-6", "--local"]
    words += [
        "--core",
        "feedforward",
        "--total-steps",
        "6000",
        "--log-every",
        "1500",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert command.main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["metrics"]["episode/return"] > 7e-6
