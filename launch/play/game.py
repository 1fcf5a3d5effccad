"""A game in a terminal, its scores and its recording, with or without a trained agent that plays it."""

import sys
from typing import Any

import numpy as np

from ...envs.registration import make_batch
from ..api.agent import TrainedAgent

COMPILING = 30  # Seconds to compile the slowest environment


class Game:
    """One environment, with all actions and scores.

    Args:
        name: short name or id of one of engram's environments.
        agent: observes every step, and chooses actions that the user does not.
    """

    def __init__(self, name: str, env_args: dict[str, Any], seed: int, agent: TrainedAgent | None = None) -> None:
        self.name, self.env_args, self.seed, self.agent = name, env_args, seed, agent
        self.batch = make_batch(name, 1, **env_args)
        self.actions: list[int] = []
        self.scores: list[float] = []  # Scores of the finished episodes
        self.score, self.reward, self.steps = 0.0, 0.0, 0
        self.over = False  # Whether the game has ended; the next action begins another
        self._began = True  # Whether the observation is the first of an episode

    def begin(self) -> None:
        """Compile the rules, so that no key press waits for the compiler, and begin the first game."""
        print(f"rl-play: compiling {self.name}, once, up to {COMPILING} s", file=sys.stderr, flush=True)
        self.batch.reset(seed=self.seed)
        self.batch.step(np.array([0]))
        self.observation, _ = self.batch.reset(seed=self.seed)

    def act(self, action: int | None = None) -> None:
        """Take a step with the user's action or, if it is None, the agent's; after the end, begin the next episode."""
        if self.agent:
            own = int(self.agent.act(self.observation, self.reward, began=self._began)[0])
            if action is not None:
                self.agent.acted(action)
            action = own if action is None else action
        assert action is not None
        self.observation, reward, terminated, truncated, _ = self.batch.step(np.array([action]))
        self.actions.append(action)
        self.score, self.steps = (0.0, 0) if self.over else (self.score, self.steps + 1)
        self._began, self.over = self.over, bool(terminated[0] or truncated[0])
        self.reward = float(reward[0])
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
        recorded = {name: getattr(self, name) for name in ("env_args", "seed", "actions", "scores")}
        return {"env": self.name, **recorded, "unfinished_score": None if self.over else self.score}
