"""Scripted players for tests of imitation."""

from typing import Any

import numpy as np


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
