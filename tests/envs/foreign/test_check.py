"""Errors of a user's environment are reported before training, with the method and the value that it returned."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.envs.foreign import ForeignBatch
from engram.launch.train import command


class Right(gymnasium.Env):
    """An environment that keeps its promises; the others break one each."""

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


class ArrayReward(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), np.array(1.0), False, False, {}


class BoolReward(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), np.bool_(True), False, False, {}


class NoReward(Right):
    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), np.nan, False, False, {}


class WrongShape(Right):
    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}


class WrongType(Right):
    """Declares bytes and returns floats."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (2,), np.uint8)


class WrongEntry(Right):
    """One entry of its Dict is of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"deep": spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8)})})

    def reset(self, **_: Any) -> Any:
        return {"deep": {"image": np.zeros(2)}}, {}


class WrongAtTheEnd(Right):
    """Returns bytes as declared, but at an episode's last step."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 255, (2,), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.time = 0
        return np.zeros(2, np.uint8), {}

    def step(self, action: int) -> Any:
        self.time += 1
        return np.zeros(2, np.float32 if self.time == 15 else np.uint8), 1.0, self.time == 15, False, {}


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


class TooMany(Right):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(10**12)


class Unmakeable(Right):
    def __init__(self) -> None:
        raise KeyError("no such file of levels")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (NoSpaces, "mine cannot be batched: .*has no attribute .action_space"),
        (OldReset, "mine.reset: The result returned by .* was not a tuple of the form .*obs, info.*Actual type"),
        (OldStep, "mine.step: Core environment is written in old step API"),
        (TextReward, "mine.step: The reward returned by .* must be a float.*'str'"),
        (NoReward, "mine.step: The reward is a NaN value"),
        (WrongShape, r"mine.step returned an observation that does not fit observation_space, Box.*\(2,\)"),
        (WrongType, "mine.reset returned an observation that does not fit observation_space, Box.*uint8.*: .*float32"),
        (WrongEntry, "mine.reset returned an observation that does not fit .*'deep': .*: .*float64.*uint8"),
        (Flags, "mine.step: Expects `terminated` signal to be a boolean, actual type: <class 'int'>"),
        (Leaves, r"mine\.step raised SystemExit: 0"),
        (TooMany, r"mine has the observation space Discrete.1000000000000., 1,000,.* as one-hot; allowed: 1,000,000"),
        (Unmakeable, "mine cannot be made: its constructor raised KeyError: 'no such file of levels'"),
    ],
)
def test_what_is_wrong_is_named(environment, message):
    with pytest.raises(ValueError, match=message):
        ForeignBatch(environment, 1, name="mine").check()


@pytest.mark.parametrize("environment", [Right, ArrayReward, BoolReward])
def test_a_right_environment_passes(environment):
    ForeignBatch(environment, 1, name="mine").check()


def test_an_exception_inside_an_environment_shows_the_environments_own_lines():
    with pytest.raises(ValueError, match=r"mine\.step raised KeyError: 'nothing here'") as problem:
        ForeignBatch(Broken, 1, name="mine").check()
    said = str(problem.value)
    assert said.count("File ") == 2
    assert "in look_up" in said
    assert "check.py" not in said.replace("test_check.py", "")


def test_a_factory_that_returns_one_object_for_all_environments_is_refused():
    env = Right()
    for make in (lambda: env, lambda: gymnasium.wrappers.TimeLimit(env, 5)):
        ForeignBatch(make, 1, name="mine")
        with pytest.raises(ValueError, match="mine returned the same object for two environments; expected a new one"):
            ForeignBatch(make, 2, name="mine")


def test_environments_of_different_spaces_are_refused():
    sizes = iter((2, 2, 3))

    def make() -> Right:
        env = Right()
        env.action_space = spaces.Discrete(next(sizes))
        return env

    expected = "mine cannot be batched: .*action_space=Discrete.3., single_action_space=Discrete.2."
    with pytest.raises(ValueError, match=expected):
        ForeignBatch(make, 3, name="mine")


@pytest.mark.integration
def test_what_breaks_its_declaration_later_ends_the_run_at_once_without_a_retry(tmp_path, capsys):
    words = f"--env {__name__}:WrongAtTheEnd --core gru --core-args hidden_size=4 --local --algorithm a2c".split()
    code = command.main([*words, "--total-steps", "10_000", "--run-dir", str(tmp_path / "run")])
    said = capsys.readouterr()
    assert code == 1
    line = f"{__name__}:WrongAtTheEnd.step returned an observation that does not fit observation_space"
    assert f"rl-train: {line}" in said.err
    assert "Traceback" not in said.err + said.out
    assert "replaced" not in said.err + said.out
