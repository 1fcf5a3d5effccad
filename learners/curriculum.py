"""When the next stage of a curriculum begins: where the agent is good enough in the one it is in.

A stage is left when the mean of a measure over its last episodes reaches a score, or after so many steps. Of episodes
that begin together, in a new stage or with other actors, the short ones end first, so the mean counts from when every
environment has ended one.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..actors.levels.config import LevelsConfig, in_words
from ..actors.unroll import EPISODE_COLUMNS
from ..base.messages import check_name


class Curriculum:
    """The stage that a learner is in.

    Args:
        config: the stages, and what is asked for in each.
        fields: names of the environment's own episode fields, in the order of the columns after EPISODE_COLUMNS.
        num_envs: environments of all actors; 0 if their number changes.
    """

    def __init__(self, config: LevelsConfig, fields: Sequence[str], num_envs: int) -> None:
        self.config, self._num_envs = config, num_envs
        names = (*EPISODE_COLUMNS, *fields)
        check_name("curriculum_measure", config.curriculum_measure, names[1:])
        self._column = names.index(config.curriculum_measure)
        self.stage = 0
        """Index of the stage."""
        self._window: deque[float] = deque(maxlen=config.curriculum_episodes)
        self._ended: set[int] = set()
        """Environments that have ended an episode of this stage."""
        self.unknown = 0
        """Episodes in a row that do not tell the measure."""
        self._began = 0
        """Steps that had been learned from when the stage began."""

    @property
    def is_last(self) -> bool:
        """Whether the environment as asked for is played."""
        return self.stage == len(self.config.stages) - 1

    def add(self, episodes: NDArray[np.floating[Any]], steps: int) -> bool:
        """Note episodes of this stage [K, 3 + F], as `Unroll.episodes` has them; whether the next stage begins.

        `steps` have been learned from so far, of all stages.
        """
        known = episodes[np.isfinite(episodes[:, self._column])]
        self.unknown = 0 if len(known) else self.unknown + len(episodes)
        self._window.extend(known[:, self._column].tolist())
        self._ended.update(known[:, 0].astype(int).tolist())
        if self.is_last or not (self._is_learned() or 0 < self.config.curriculum_steps <= steps - self._began):
            return False
        self.stage += 1
        self._began = steps
        self.begin_episodes()
        return True

    def begin_episodes(self) -> None:
        """Every environment begins a new episode now: the first ones to end are the short ones, so all count again."""
        self._window.clear()
        self._ended.clear()

    def metrics(self) -> dict[str, float]:
        """The stage, counted from 1, and, from its first episode on, the mean that it is left by."""
        score = {"curriculum/score": self._mean()} if self._window else {}
        return {"curriculum/stage": self.stage + 1.0} | score

    def __str__(self) -> str:
        stages = self.config.stages
        return f"stage {self.stage + 1} of {len(stages)}: {in_words(stages[self.stage])}"

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on."""
        return {
            "stage": self.stage,
            "began": self._began,
            "window": list(self._window),
            "ended": sorted(self._ended),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.stage, self._ended = state["stage"], set(state["ended"])
        self._began = state.get("began", 0)  # older checkpoints have none
        self._window = deque(state["window"], maxlen=self._window.maxlen)

    def _is_learned(self) -> bool:
        """Whether the last episodes, of every environment one at least, reach the stage's score."""
        full = len(self._window) == self._window.maxlen and len(self._ended) >= self._num_envs
        return full and self._mean() >= self.config.scores[self.stage]

    def _mean(self) -> float:
        return sum(self._window) / len(self._window)
