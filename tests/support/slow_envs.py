"""An environment whose steps and resets take time, which can hang, and which notes its life in a file."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from engram.launch.train import acting


class Slow(gymnasium.Env[Any, Any]):
    """Episodes of `length` steps.

    Args:
        step_seconds: of each step.
        reset_seconds: of each reset.
        hang_at: step of an environment from which it does not return; 0 for none.
        length: steps of an episode.
        log: file that gets a line when an environment is made, and when it is closed.
        only_one: whether a second environment cannot be made while there is one.
        size: numbers that the environment's state takes.
        hang_in: "constructor" or "reset", which does not return; otherwise neither.
        start_seconds: least seconds without progress that the watchdog of this process takes for a hanging start.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self,
        step_seconds: float = 0.0,
        reset_seconds: float = 0.0,
        hang_at: int = 0,
        length: int = 50,
        log: str = "",
        only_one: bool = False,
        size: int = 0,
        hang_in: str = "",
        start_seconds: float = 0.0,
    ) -> None:
        self.step_seconds, self.reset_seconds, self.hang_at, self.length = step_seconds, reset_seconds, hang_at, length
        self.log, self.taken, self.at = log, 0, 0
        self.state = np.random.default_rng(0).random(size)
        self.lock = Path(log + ".lock") if only_one else None
        if self.lock:
            self.lock.touch(exist_ok=False)
        self.hang_in = hang_in
        self._note("made")
        if start_seconds:
            acting.START_SECONDS = start_seconds
        while hang_in == "constructor":
            time.sleep(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        while self.hang_in == "reset":
            time.sleep(1)
        time.sleep(self.reset_seconds)
        self.at = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.taken = self.at + 1, self.taken + 1
        while self.taken == self.hang_at:
            time.sleep(1)
        time.sleep(self.step_seconds)
        return np.ones(3, np.float32), 1.0, self.at >= self.length, False, {}

    def close(self) -> None:
        self._note("closed")
        if self.lock:
            self.lock.unlink()

    def _note(self, word: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{word}\n")


def noted(log: Path, word: str) -> int:
    """How many environments were made, or closed."""
    return log.read_text().split().count(word) if log.exists() else 0
