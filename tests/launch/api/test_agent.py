"""engram.load_agent: what it returns is what an actor would do, alone and in a batch, with memories of its own."""

import sys
import types
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import engram
from engram.agents.config import AgentConfig
from engram.base.errors import EngramError
from engram.launch.api.agent import TrainedAgent
from engram.launch.config.run_config import RunConfig
from masked_envs import ENVIRONMENTS

CONFIG = RunConfig(
    env="cued-catch", agent=AgentConfig(core="gru", core_args={"hidden_size": 8}), envs_per_actor=4, local=True
)


def new_agent(config: RunConfig = CONFIG, greedy: bool = True) -> TrainedAgent:
    """An agent with first weights, which is one that acts all the same."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        actor = config.factory().make_actor(0)
    actor.agent.greedy = greedy
    return TrainedAgent(config, actor)


def observations(config: RunConfig, steps: int, count: int):
    """Observations [T, B, ...] of an environment under the same actions."""
    env = engram.make_env(config.env, num_envs=count, **config.env_args)
    found, over = [], []
    observation, _ = env.reset(seed=1)
    for _ in range(steps):
        found.append(np.copy(observation))
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample() * 0)
        over.append(terminated | truncated)
    env.close()
    return np.stack(found), np.stack(over)


def test_a_batch_is_as_many_agents_each_with_its_own_episodes():
    seen, _ = observations(CONFIG, 12, 3)
    began = np.zeros((12, 3), bool)
    began[4, 0] = began[7, 2] = True
    many, single = new_agent(), [new_agent() for _ in range(3)]
    for t in range(12):
        actions = many.act(seen[t], began=began[t])
        assert actions.shape == (3,)
        for b, agent in enumerate(single):
            if began[t, b]:
                agent.reset()
            action = agent.act(seen[t, b])
            assert isinstance(action, int)
            assert action == actions[b]
            assert agent.value.shape == ()
            np.testing.assert_allclose(agent.value, many.value[b], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(agent.memory["h"], many.memory["h"][b], rtol=1e-5, atol=1e-6)
    assert many.memory["h"].shape == (3, 8)
    np.testing.assert_allclose(many.probabilities.sum(-1), 1, rtol=1e-5)


def test_a_memory_lasts_until_reset():
    seen, _ = observations(CONFIG, 3, 1)
    agent = new_agent()
    agent.act(seen[0, 0])
    first = agent.memory["h"]
    agent.act(seen[1, 0])
    agent.act(seen[0, 0])
    assert not np.allclose(agent.memory["h"], first)
    agent.reset()
    assert agent.memory == {}
    agent.act(seen[0, 0])
    np.testing.assert_array_equal(agent.memory["h"], first)


def test_it_draws_the_actions_of_an_actor():
    """The same weights, seed and levels: every action of an unroll, across the ends of episodes."""
    config = replace(CONFIG, env="boxworld", env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 9})
    actor = config.factory().make_actor(0)
    actor.unroll_length = 30
    agent = new_agent(config, greedy=False)
    agent.network.load_state_dict(actor.agent.state_dict())
    agent._generator.set_state(actor.generator.get_state())
    unroll = actor.unroll()
    env = unroll.env
    over = (env.terminated | env.truncated).numpy()
    assert over.any(), "an episode ends"
    for t in range(30):
        began = over[t - 1] if t else None
        actions = agent.act(env.observation[t].numpy(), env.reward[t].numpy(), began=began)
        np.testing.assert_array_equal(actions, unroll.agent.action[t].numpy())


def test_the_action_that_was_really_taken_is_what_it_remembers():
    config = replace(CONFIG, agent=replace(CONFIG.agent, previous_action=True))
    seen, _ = observations(config, 2, 1)
    found = []
    for taken in (0, 1):
        agent = new_agent(config)
        agent.act(seen[0, 0])
        agent.acted(taken)
        agent.act(seen[1, 0])
        found.append(agent.memory["h"])
    assert not np.allclose(*found)


def test_a_reward_that_the_core_sees_must_be_given():
    agent = new_agent(replace(CONFIG, agent=replace(CONFIG.agent, previous_reward=True)))
    seen, _ = observations(CONFIG, 2, 1)
    assert agent.needs_reward
    agent.act(seen[0, 0])
    with pytest.raises(ValueError, match="reward is missing"):
        agent.act(seen[1, 0])
    agent.act(seen[1, 0], 0.5)


def test_mistakes():
    agent = new_agent()
    seen, _ = observations(CONFIG, 1, 4)
    with pytest.raises(ValueError, match="no action has been sampled yet"):
        _ = agent.value
    with pytest.raises(ValueError, match=r"observation has shape \[2, 2, 2, 2\]; expected \["):
        agent.act(np.zeros((2, 2, 2, 2)))
    agent.act(seen[0])
    with pytest.raises(ValueError, match=r"2 observations for the recurrent states of 4 environments.*reset"):
        agent.act(seen[0, :2])
    with pytest.raises(ValueError, match="began has 3 values; expected 4"):
        agent.act(seen[0], began=[True, False, False])
    with pytest.raises(ValueError, match="contains no run"):
        engram.load_agent("/nowhere")
    with pytest.raises(ValueError, match="there is no agent zoo:graph-fwn; did you mean: graph-fwm"):
        engram.load_agent("zoo:graph-fwn")


class Mixed(gymnasium.Env):
    """Observations in parts, a Box of actions in bounds of its own."""

    observation_space = spaces.Dict({"number": spaces.Box(-1, 1, (2,)), "choice": spaces.Discrete(3, start=1)})
    action_space = spaces.Box(np.array([10.0, -4.0]), np.array([20.0, 4.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


def test_observations_that_would_be_cast_to_others_are_refused():
    seen, _ = observations(CONFIG, 1, 2)
    agent = new_agent()
    for wrong in (np.full(seen[0].shape, np.nan), np.full(seen[0].shape, -1), seen[0] + 0.5, seen[0].astype(str)):
        with pytest.raises(ValueError, match=r"observation of .* would change when cast; expected values of Box"):
            agent.act(wrong)
    np.testing.assert_array_equal(agent.act(seen[0].astype(float)), new_agent().act(seen[0]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"member": "x"}, "member is 'x'; expected int"),
        ({"seed": "x"}, "seed is 'x'; expected int"),
        ({"seed": -1}, "seed is -1; allowed: 0"),
        ({"checkpoint": 2.5}, "checkpoint is 2.5; expected str"),
        ({"env_args": "x"}, "env_args is 'x'; expected dict"),
        ({"env_args": {1: 2}}, "env_args is {1: 2}; expected dict"),
        ({"run": 3}, "run is 3; expected str"),
    ],
)
def test_what_cannot_mean_an_agent_is_named(options, said):
    for function in (engram.load_agent, engram.evaluate):
        with pytest.raises(ValueError, match=said):
            function(**{"run": "zoo:graph-fwm"} | options)
    for episodes in ("x", 2.5, 0):
        with pytest.raises(ValueError, match=f"episodes is {episodes!r}; "):
            engram.evaluate("zoo:graph-fwm", episodes=episodes)  # pyright: ignore[reportArgumentType]


def test_an_environment_made_elsewhere_is_seen_and_acted_in_by_its_own_spaces(monkeypatch):
    monkeypatch.setitem(sys.modules, "mixed_environment", types.SimpleNamespace(Mixed=Mixed))
    config = replace(CONFIG, env="mixed_environment:Mixed", envs_per_actor=2)
    agent, env = new_agent(config, greedy=False), Mixed()
    assert agent.action_space == env.action_space
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        observation, *_ = env.step(agent.act(observation))
    agent.reset()
    many = engram.make_env("mixed_environment:Mixed", num_envs=3)
    seen, _ = many.reset(seed=1)
    assert agent.act(seen).shape == (3, 2)
    with pytest.raises(ValueError, match="only a Discrete space has probabilities"):
        _ = agent.probabilities
    with pytest.raises(ValueError, match="observation is a ndarray; expected a dict with "):
        agent.act(np.zeros(2))


def test_an_agent_of_the_zoo_earns_what_its_file_says():
    agent = engram.load_agent("zoo:graph-fwm")
    env = engram.make_env(agent.config.env, num_envs=200, **agent.config.env_args)
    observation, _ = env.reset(seed=0)
    began, total, reward = np.ones(200, bool), 0.0, np.zeros(200)
    for _ in range(31):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation, reward, began=began))
        began, total = terminated | truncated, total + reward.sum() / 200
    facts = engram.evaluate("zoo:graph-fwm", episodes=400)
    assert abs(total - facts.estimates["return"].mean) < 0.1 * abs(facts.estimates["return"].mean) + 0.5


@pytest.mark.parametrize("env", ["CartPole-v1", "engram.examples.masked_cartpole:MaskedCartPole", "t-maze"])
def test_a_wrong_number_of_environments_is_named(env):
    for number in (0, "3"):
        with pytest.raises(EngramError, match=f"num_envs is {number!r}; "):
            engram.make_env(env, number)


def test_make_env():
    assert engram.make_env("boxworld").unwrapped.spec.id == "engram/BoxWorld-v0"
    one = engram.make_env("engram.examples.masked_cartpole:MaskedCartPole", max_episode_steps=7)
    assert one.reset(seed=0)[0].shape == (2,)
    assert engram.make_env("CartPole-v1", num_envs=3).reset(seed=0)[0].shape == (3, 4)
    assert engram.make_env("t-maze-twin", num_envs=2).reset(seed=0)[0].shape[0] == 2
    assert engram.make_env("maze", render_mode="rgb_array").unwrapped.render_mode == "rgb_array"
    with pytest.raises(ValueError, match="no parameter 'sise'; did you mean: size"):
        engram.make_env("maze", sise=3)
    with pytest.raises(ValueError, match="unknown environment 'mase'; did you mean: maze"):
        engram.make_env("mase")


def test_only_valid_actions_are_returned_and_a_missing_or_wrong_mask_is_an_error():
    agents = [new_agent(replace(CONFIG, env=env), greedy=False) for env in ENVIRONMENTS]
    single, observed, several, own = agents
    assert all(agent.needs_action_mask for agent in agents)
    assert not new_agent().needs_action_mask
    image, mask = np.ones((4, 4, 3), np.uint8), np.array([0, 1, 0, 0, 1], np.int8)
    assert {single.act(image, action_mask=mask) for _ in range(50)} == {1, 4}
    np.testing.assert_array_equal(single.probabilities > 0, mask)
    assert {observed.act({"image": image, "action_mask": mask}) for _ in range(50)} == {1, 4}
    masks = np.array([[1, 0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0, 1]], np.bool_)
    for _ in range(10):
        np.testing.assert_array_equal(several.act(np.stack([image] * 2), action_mask=masks), [[0, 1, 0], [2, 0, 3]])
    several.reset()
    backwards = mask.astype(np.bool_)[::-1]  # of negative strides, as np.flip returns
    assert {single.act(image[::-1], action_mask=backwards) for _ in range(50)} == set(np.flatnonzero(backwards))
    with pytest.raises(ValueError, match=r"action_mask is missing; expected: act.observation, action_mask="):
        several.act(image)
    with pytest.raises(ValueError, match=r"action_mask of masked_envs:MaskedChoices has no valid action for choice 1"):
        several.act(image, action_mask=[1, 1, 1, 0, 0, 1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"action_mask of masked_envs:MaskedChoices has 3 values; expected 9"):
        several.act(image, action_mask=[1, 1, 1])
    seen = np.zeros(own.observation_space.shape, own.observation_space.dtype)
    assert own.act(seen, action_mask=[False, False, True, False]) == 2
