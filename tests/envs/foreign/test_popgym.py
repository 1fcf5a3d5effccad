"""The compiled POPGym tasks agree with the package popgym step by step, given the same cards, ships and mines."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.envs.registration import ENVIRONMENTS, find_environment

popgym = pytest.importorskip("popgym", reason="pip install popgym")

TASKS = [name for name in ENVIRONMENTS if name.startswith("popgym-")]
DIFFICULTIES = ("easy", *(pytest.param(name, marks=pytest.mark.integration) for name in ("medium", "hard")))
EPISODES = 3


def theirs(name: str, difficulty: str) -> Any:
    """The package's environment."""
    task = ENVIRONMENTS[name].class_name.removeprefix("Popgym")
    return gymnasium.make(f"popgym-{task}{difficulty.capitalize()}-v0", disable_env_checker=True).unwrapped


def level_of(name: str, env: Any) -> dict[str, Any]:
    """The random choices of the package's environment, as a level of ours."""
    match name.removeprefix("popgym-"):
        case "battleship":
            return {"ships": np.argwhere(env.board).tolist()}
        case "mine-sweeper":
            return {"mines": np.argwhere(env.hidden_grid == 1).tolist()}
        case "count-recall":
            return {"values": env.value_deck.idx[::-1].tolist(), "queries": env.query_deck.idx[::-1].tolist()}
        case "concentration":
            return {"deck": env.deck.idx.tolist()}
        case _:
            return {"deck": env.deck.idx[::-1].tolist()}


def winning(name: str, env: Any, random: np.random.Generator) -> list[int]:
    """Actions that end a game of boards or pairs by winning it; none in the other tasks."""
    if name == "popgym-battleship":
        return random.permutation(env.board.size).tolist()
    if name == "popgym-mine-sweeper":
        return random.permutation(np.flatnonzero(env.hidden_grid != 1)).tolist()
    if name == "popgym-concentration":
        return np.argsort(env.state, kind="stable").tolist()
    return []


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("name", TASKS)
def test_the_same_choices_give_the_same_steps(name: str, difficulty: str) -> None:
    other, random = theirs(name, difficulty), np.random.default_rng(5)
    env = gymnasium.make(find_environment(name)[0].id, difficulty=difficulty, disable_env_checker=True).unwrapped
    choices = other.action_space.nvec if isinstance(other.action_space, spaces.MultiDiscrete) else None
    num_actions = int(np.prod(choices)) if choices is not None else int(other.action_space.n)
    assert env.action_space == spaces.Discrete(num_actions)
    assert env.observation_space.shape == (spaces.flatdim(other.observation_space),)
    ends, rewards = set(), set()
    for episode in range(EPISODES):
        seen, _ = other.reset(seed=episode)
        plan = winning(name, other, random) if episode == 0 else []
        observation, _ = env.reset(seed=0, options={"level": level_of(name, other)})
        over, steps = False, 0
        while not over:
            np.testing.assert_array_equal(observation, spaces.flatten(other.observation_space, seen))
            action = plan[steps] if steps < len(plan) else int(random.integers(num_actions))
            given = action if choices is None else np.array(np.unravel_index(action, choices))
            seen, reward, terminated, truncated, _ = other.step(given)
            observation, mine, *flags = env.step(action)[:4]
            assert mine == np.float32(reward), steps
            assert flags == [terminated, truncated and not terminated], steps
            over, steps = terminated or truncated, steps + 1
            rewards.add(mine)
        np.testing.assert_array_equal(observation, spaces.flatten(other.observation_space, seen))
        ends.add(tuple(flags))
    assert min(rewards) < 0 < max(rewards)
    assert not plan or (True, False) in ends


def features(level: dict[str, Any]) -> list[float]:
    """The first deck of a level; of a board its cells and its pairs of occupied neighbors, across and down."""
    values = np.array(next(iter(level.values())))
    if values.ndim == 1:
        return values.tolist()
    board = np.zeros((8, 8))
    board[tuple(values.T)] = 1
    return [*board.ravel(), (board[:, 1:] * board[:, :-1]).sum(), (board[1:] * board[:-1]).sum()]


@pytest.mark.parametrize("name", TASKS)
def test_levels_are_distributed_alike(name: str) -> None:
    """Over 400 levels, the means of what chance decides are those of the package, within sampling error."""
    other, env = theirs(name, "easy"), gymnasium.make(find_environment(name)[0].id, disable_env_checker=True).unwrapped
    samples = []
    for seed in range(400):
        other.reset(seed=seed)
        env.reset(seed=seed)
        samples.append([features(level_of(name, other)), features(env.level)])
    drawn = np.array(samples)
    error = np.sqrt(drawn.var(0).sum(0) / len(drawn))
    assert (np.abs(np.subtract(*drawn.mean(0))) <= 4.5 * error).all()
