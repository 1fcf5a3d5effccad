"""A game that a person plays: what was done in it, what it was worth, and its recording."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ...base.messages import advice, check_whole
from ...envs.registration import environment_names, is_environment, make_batch

FORMAT = 1
"""Version of the recordings."""
COMPILING = 30
"""Seconds that the slowest environment takes to be compiled."""
_ALLOWED = "allowed: a file written by rl-play --record FILE"
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "env": ((str,), "the name of an environment"),
    "env_args": ((dict,), "an object of its parameters"),
    "seed": ((int,), "a whole number"),
    "actions": ((list,), "a list of whole numbers"),
    "scores": ((list,), "a list of numbers"),
    "unfinished_score": ((int, float, type(None)), "a number or null"),
}
"""Keys of a recording beside its format: types of their values, and the same in words."""


class Game:
    """One environment, everything done in it, and what it was worth.

    Args:
        name: short name or id of one of our own environments.
        env_args: its parameters.
        seed: of its levels.
    """

    def __init__(self, name: str, env_args: dict[str, Any], seed: int) -> None:
        if not is_environment(name):
            raise ValueError(f"unknown environment {name!r}; {advice(name, environment_names())}")
        self.name, self.env_args, self.seed = name, env_args, seed
        self.batch = make_batch(name, 1, **env_args)
        self.actions: list[int] = []
        self.scores: list[float] = []
        """Scores of the episodes that have ended."""
        self.score, self.reward, self.steps = 0.0, 0.0, 0
        self.terminated, self.truncated = False, False

    def begin(self) -> None:
        """Compile the rules, so that no key waits for that later, and begin the first game."""
        print(f"rl-play: compiling {self.name}, once, up to {COMPILING} s", file=sys.stderr, flush=True)
        self.batch.reset(seed=self.seed)
        self.batch.step(np.array([0]))
        self.observation, _ = self.batch.reset(seed=self.seed)

    @property
    def over(self) -> bool:
        """Whether the game has ended; the next action begins another."""
        return self.terminated or self.truncated

    def act(self, action: int) -> None:
        """Take a step, or begin the next episode if one has just ended."""
        self.observation, reward, terminated, truncated, _ = self.batch.step(np.array([action]))
        self.actions.append(action)
        if self.over:
            self.score, self.steps = 0.0, 0
        else:
            self.steps += 1
        self.reward, self.terminated, self.truncated = float(reward[0]), bool(terminated[0]), bool(truncated[0])
        self.score += self.reward
        if self.over:
            self.scores.append(self.score)

    def facts(self) -> str:
        """Episode fields that the environment reports."""
        values = self.batch.episode_facts(np.array([0]))[0]
        named = zip(self.batch.episode_fields, values, strict=True)
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in named)

    def recording(self) -> dict[str, Any]:
        """All that is needed to see it again."""
        return {
            "format": FORMAT,
            "env": self.name,
            "env_args": self.env_args,
            "seed": self.seed,
            "actions": self.actions,
            "scores": self.scores,
            "unfinished_score": None if self.over else self.score,
        }


def load_recording(file: str) -> tuple[dict[str, Any], Game]:
    """A recording and the game it is of, not begun. Raises ValueError naming the file and what is wrong in it."""
    try:
        saved: Any = json.loads(Path(file).read_text())
    except OSError as problem:
        raise ValueError(f"cannot read the recording {file}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise ValueError(
            f"cannot read the recording {file}: it is not JSON, or nested too deeply; {_ALLOWED}"
        ) from problem
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ValueError(f"{file} is no recording of rl-play in format {FORMAT}; {_ALLOWED}")
    for key, (types, words) in _KINDS.items():
        value: Any = saved.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if key not in saved or not isinstance(value, types) or isinstance(value, bool):
            raise ValueError(f"{file}: {key} is {_short(saved, key)}; expected {words}")
    found: dict[str, Any] = saved  # pyright: ignore[reportUnknownVariableType]
    try:
        check_whole("seed", found["seed"], 0)
        game = Game(found["env"], found["env_args"], found["seed"])
    except (ValueError, TypeError, OverflowError, MemoryError) as problem:
        raise ValueError(f"{file}: {problem or 'this environment does not fit into memory'}") from problem
    for place, action in enumerate(found["actions"]):
        if type(action) is not int or not 0 <= action < len(game.batch.action_names):
            said = f"{file}: action {place} is {str(action)[:40]!r}"
            raise ValueError(f"{said}; allowed in {found['env']}: {game.batch.allowed_actions}")
    return found, game


def _short(saved: dict[str, Any], key: str) -> str:
    """A value of a recording in a few words."""
    value = saved.get(key)
    if key not in saved or isinstance(value, list | dict):
        return f"a {type(value).__name__}" if key in saved else "missing"
    return repr(value)[:40]
