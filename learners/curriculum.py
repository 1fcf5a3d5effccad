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
from ..actors.levels.mixture import Shares, widths
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


class Mixture:
    """The share of the environments in each stage, where all stages are trained at once.

        share_s = m / S + (1 - m) p_s (1 - p_s) / sum_r p_r (1 - p_r),    m = curriculum_mixture

    p_s is the solved rate of the last `curriculum_episodes` episodes of stage s, 1/2 before the first; p (1 - p) is the
    learnability of Rutherford et al. 2024, "No Regrets", section 4. Shares are computed again after so many episodes of
    all stages, one of every environment among them, and change only if one moves by CHANGE: then all episodes begin
    again.

    Args:
        config: the stages.
        fields: see `Curriculum`.
        num_envs: see `Curriculum`.
        actor_envs: environments of each actor.
    """

    CHANGE = 0.05
    is_last = False
    """Episodes of other stages are among those of the environment as configured."""

    def __init__(self, config: LevelsConfig, fields: Sequence[str], num_envs: int, actor_envs: int) -> None:
        names = (*EPISODE_COLUMNS, *fields)
        check_name("curriculum_measure", config.curriculum_measure, names[1:])
        self.config, self._num_envs, self._actor_envs = config, num_envs, actor_envs
        self._column = names.index(config.curriculum_measure)
        first = config.first_stage
        assert not isinstance(first, int)
        self.stage: Shares = first
        """Share of each stage."""
        self._windows = [deque[float](maxlen=config.curriculum_episodes) for _ in config.stages]
        self._ended: set[int] = set()
        self._new = 0
        self.unknown = 0
        """Episodes in a row that do not report the measure."""

    def add(self, episodes: NDArray[np.floating[Any]], steps: int) -> bool:
        """Note episodes [K, 3 + F], as `Unroll.episodes` has them; whether the shares change."""
        del steps
        known = episodes[np.isfinite(episodes[:, self._column])]
        self.unknown = 0 if len(known) else self.unknown + len(episodes)
        for index, value in zip(known[:, 0].astype(int).tolist(), known[:, self._column].tolist(), strict=True):
            self._windows[self._stage_of(index)].append(value)
            self._ended.add(index)
        self._new += len(known)
        if self._new < self.config.curriculum_episodes or len(self._ended) < self._num_envs:
            return False
        self.begin_episodes()
        shares = self._shares()
        if max(abs(new - old) for new, old in zip(shares, self.stage, strict=True)) < self.CHANGE:
            return False
        self.stage = shares
        return True

    def begin_episodes(self) -> None:
        """Every environment begins a new episode now: the first ones to end are the short ones, so all count again."""
        self._ended.clear()
        self._new = 0

    def _stage_of(self, index: int) -> int:
        actor, place = divmod(index, self._actor_envs)
        counts = widths(actor * self._actor_envs, self._actor_envs, self.stage)
        return int(np.searchsorted(np.cumsum(counts), place, side="right"))

    def _shares(self) -> Shares:
        rates = [sum(window) / len(window) if window else 0.5 for window in self._windows]
        scores = [rate * (1 - rate) for rate in rates]
        even, total = self.config.curriculum_mixture / len(scores), sum(scores)
        if total <= 0:
            return (1 / len(scores),) * len(scores)
        return tuple(even + (1 - self.config.curriculum_mixture) * score / total for score in scores)

    def metrics(self) -> dict[str, float]:
        """Share of each stage, counted from 1, and its solved rate."""
        shares = {f"curriculum/share_{number}": share for number, share in enumerate(self.stage, 1)}
        rates = enumerate(self._windows, 1)
        return shares | {f"curriculum/solved_{number}": sum(each) / len(each) for number, each in rates if each}

    def __str__(self) -> str:
        parts = zip(self.stage, self.config.stages, strict=True)
        return "mixture of " + ", ".join(f"{share:.0%} {in_words(stage)}" for share, stage in parts)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on."""
        windows = [list(window) for window in self._windows]
        return {"shares": list(self.stage), "windows": windows, "ended": sorted(self._ended), "new": self._new}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.stage, self._ended, self._new = tuple(state["shares"]), set(state["ended"]), state["new"]
        for window, values in zip(self._windows, state["windows"], strict=True):
            window.clear()
            window.extend(values)


def make_curriculum(
    config: LevelsConfig, fields: Sequence[str], num_actors: int, actor_envs: int
) -> Curriculum | Mixture:
    """The stages of a learner: one after another, or all at once; 0 actors if their number changes."""
    if config.curriculum_mixture:
        return Mixture(config, fields, num_actors * actor_envs, actor_envs)
    return Curriculum(config, fields, num_actors * actor_envs)
