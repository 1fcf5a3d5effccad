"""Scripted players to imitate, and an environment that tells losses more than the policy."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Still:
    """Always the third action."""

    def __init__(self, batch: Any) -> None:
        self.num_envs = batch.num_envs

    def act(self, observation: Any, first: np.ndarray) -> np.ndarray:
        return np.full(self.num_envs, 2)


class Summing:
    """A function of all observations of the episode: their sum, modulo 4."""

    def __init__(self, batch: Any) -> None:
        self.sums = np.zeros(batch.num_envs, np.int64)

    def act(self, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        self.sums = np.where(first, 0, self.sums) + observation.astype(np.int64).sum((1, 2, 3))
        return self.sums % 4

    def save(self) -> dict[str, np.ndarray]:
        return {"sums": self.sums.copy()}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self.sums = np.array(saved["sums"])


class TooFew(Still):
    """One action for all environments."""

    def act(self, observation: Any, first: np.ndarray) -> np.ndarray:
        return np.zeros(1, np.int64)


class Told(gymnasium.Env[Any, Any]):
    """An environment made elsewhere whose observation has entries for critic and map."""

    observation_space = spaces.Dict(
        {
            "privileged": spaces.Box(-9, 9, (2,), np.float32),
            "map": spaces.Box(0, np.array([[[3, 1]] * 2]), dtype=np.uint8),
            "vector": spaces.Box(-9, 9, (5,), np.float32),
        }
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, self.np_random.random() < 0.2, False, {}
