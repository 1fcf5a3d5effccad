"""A game in a terminal, its scores and its recording, and a trained agent that plays it."""

import sys
from typing import Any

import numpy as np

from ...agents.process import prepare_process
from ...base.errors import refuse
from ...base.messages import check_name
from ...envs.registration import environment_names, is_environment, make_batch
from ..api.agent import load_agent
from ..runs.trained import evaluation_seed

COMPILING = 30  # Seconds to compile the slowest environment


class Game:
    """One environment, with all actions and scores.

    Args:
        name: short name or id of one of engram's environments.
    """

    def __init__(self, name: str, env_args: dict[str, Any], seed: int) -> None:
        if not is_environment(name):
            check_name("environment", name, environment_names())
        self.name, self.env_args, self.seed = name, env_args, seed
        self.batch = make_batch(name, 1, **env_args)
        self.actions: list[int] = []
        self.scores: list[float] = []  # Scores of the finished episodes
        self.score, self.reward, self.steps = 0.0, 0.0, 0
        self.terminated, self.truncated = False, False

    def begin(self) -> None:
        """Compile the rules, so that no key press waits for the compiler, and begin the first game."""
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
        """Return the episode fields that the environment reports, as text."""
        values = self.batch.episode_facts(np.array([0]))[0]
        named = zip(self.batch.episode_fields, values, strict=True)
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in named)

    def recording(self) -> dict[str, Any]:
        """The recording of the game."""
        return {
            "env": self.name,
            "env_args": self.env_args,
            "seed": self.seed,
            "actions": self.actions,
            "scores": self.scores,
            "unfinished_score": None if self.over else self.score,
        }


class Player:
    """A trained agent in a game; `path` is a run directory or zoo:NAME, and `options` are those of `load_agent`."""

    def __init__(self, path: str, *, env_args: dict[str, Any], seed: int, **options: Any) -> None:
        prepare_process(1)
        self._agent = load_agent(path, seed=seed, env_args=env_args, **options)
        config = self._agent.config
        refuse(
            not is_environment(config.env),
            f"{path} plays {config.env}; rl-play shows only engram's environments, rl-eval --gif any",
        )
        self.game = Game(config.env, config.env_args | env_args, evaluation_seed(seed))
        self._began = True

    def choose(self, by_hand: int | None = None) -> int:
        """Return the agent's action in the current step; `by_hand`, if set, replaces it as the last action in its
        input."""
        game = self.game
        action = int(self._agent.act(game.observation, game.reward, began=self._began)[0])
        self._began = game.over
        if by_hand is None:
            return action
        self._agent.acted(by_hand)
        return by_hand
