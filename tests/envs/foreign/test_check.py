"""A user's own world that is wrong is told so before anything runs, with the method and what it returned."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.envs.foreign import ForeignBatch


class Right(gymnasium.Env):
    """A world that keeps its promises; the others break one each."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class NoSpaces(Right):
    def __init__(self) -> None:
        pass


class OldReset(Right):
    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32)


class OldStep(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 1.0, False, {}


class TextReward(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), "good", False, False, {}


class WrongShape(Right):
    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}


class Flags(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 1.0, 0, False, {}


class Broken(Right):
    def step(self, action: int) -> Any:
        return self.look_up({}, action)

    def look_up(self, table: dict, action: int) -> Any:
        return table["nothing here"]


class Leaves(Right):
    def step(self, action: int) -> Any:
        sys.exit(0)


class TooWide(Right):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.7e308, 1.7e308, (2,), np.float64)


class TooMany(Right):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(10**12)


class Unmakeable(Right):
    def __init__(self) -> None:
        raise KeyError("no such file of levels")


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (NoSpaces, "mine.observation_space is nothing; expected a gymnasium.spaces.Space"),
        (OldReset, "mine.reset returned array.*; expected .observation, info."),
        (OldStep, "mine.step returned 4 values .*; expected .observation, reward, terminated.*Gym's old form"),
        (TextReward, "mine.step returned the reward 'good'; expected a finite number"),
        (WrongShape, "mine.step returned an observation of shape .3,.; observation_space says .2,."),
        (Flags, "mine.step returned terminated = 0; expected True or False"),
        (Leaves, r"mine\.step raised SystemExit: 0"),
        (TooWide, r"mine\.action_space\.sample raised OverflowError"),
        (TooMany, r"mine has the observation space Discrete.1000000000000., 1,000,.* as one-hot; allowed: 1,000,000"),
        (Unmakeable, "mine cannot be made: its constructor raised KeyError: 'no such file of levels'"),
    ],
)
def test_what_is_wrong_is_named(world, message):
    with pytest.raises(ValueError, match=message):
        ForeignBatch(world, 1, name="mine").check()


def test_a_right_world_passes():
    ForeignBatch(Right, 1, name="mine").check()


def test_an_exception_inside_a_world_shows_the_worlds_own_lines():
    with pytest.raises(ValueError, match=r"mine\.step raised KeyError: 'nothing here'") as problem:
        ForeignBatch(Broken, 1, name="mine").check()
    said = str(problem.value)
    assert said.count("File ") == 2
    assert "in look_up" in said
    assert "check.py" not in said.replace("test_check.py", "")
