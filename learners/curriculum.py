"""Curriculum: a stage ends when the mean of a measure over its last episodes reaches a score, or after some steps.

When a stage begins, or the actors change, short episodes end first. The mean is therefore used only after every
environment has completed an episode.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..actors.levels import LevelsConfig, Shares, in_words, widths
from ..actors.unroll import EPISODE_COLUMNS
from ..base.errors import check_name


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values)


class _Stages:
    """Episodes of the current stage, or of all stages of a mixture. `fields` names the columns after EPISODE_COLUMNS;
    `num_envs` counts the environments of all actors, 0 if it varies."""

    def __init__(self, config: LevelsConfig, fields: Sequence[str], num_envs: int) -> None:
        self.config, self._num_envs = config, num_envs
        names = (*EPISODE_COLUMNS, *fields)
        check_name("curriculum_measure", config.curriculum_measure, names[1:])
        self._column = names.index(config.curriculum_measure)
        self._ended: set[int] = set()  # Environments that have completed an episode since all of them began one
        self.unknown = 0  # Consecutive episodes that do not report the measure

    def note_environments(self, number: int) -> None:
        """Wait for this number of environments from now on, if the others were lost with their learner."""
        if 0 < number < self._num_envs:
            self._num_envs = number
            self._ended.clear()

    def _reported(self, episodes: NDArray[np.floating[Any]]) -> list[tuple[int, float]]:
        """Environment and measure of each of the episodes [K, 3 + F] that report the measure."""
        reported = episodes[np.isfinite(episodes[:, self._column])]
        self.unknown = 0 if len(reported) else self.unknown + len(episodes)
        environments = reported[:, 0].astype(int).tolist()
        self._ended.update(environments)
        return list(zip(environments, reported[:, self._column].tolist(), strict=True))


class Curriculum(_Stages):
    """Current stage of a learner."""

    def __init__(self, config: LevelsConfig, fields: Sequence[str], num_envs: int) -> None:
        super().__init__(config, fields, num_envs)
        self.stage = 0  # Index of the current stage
        self._window: deque[float] = deque(maxlen=config.curriculum_episodes)
        self._began = 0  # Learned steps when the stage began

    @property
    def is_last(self) -> bool:
        """Whether the current stage is the configured environment."""
        return self.stage == len(self.config.stages) - 1

    def add(self, episodes: NDArray[np.floating[Any]], steps: int) -> bool:
        """Record episodes of this stage, as in `Unroll.episodes`; return whether the next stage begins. `steps` is the
        number of learned steps so far, over all stages."""
        self._window.extend(value for _, value in self._reported(episodes))
        if self.is_last:
            return False
        full = len(self._window) == self._window.maxlen and len(self._ended) >= self._num_envs
        learned = full and _mean(self._window) >= self.config.scores[self.stage]
        if not (learned or 0 < self.config.curriculum_steps <= steps - self._began):
            return False
        self.stage += 1
        self._began = steps
        self.begin_episodes()
        return True

    def begin_episodes(self) -> None:
        """Restart counting when every environment begins a new episode, since short episodes end first."""
        self._window.clear()
        self._ended.clear()

    def metrics(self) -> dict[str, float]:
        """Return the stage (from 1) and, after its first episode, the mean to compare with the stage's score."""
        score = {"curriculum/score": _mean(self._window)} if self._window else {}
        return {"curriculum/stage": self.stage + 1.0} | score

    def __str__(self) -> str:
        stages = self.config.stages
        return f"stage {self.stage + 1} of {len(stages)}: {in_words(stages[self.stage])}"

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on."""
        return {"stage": self.stage, "began": self._began, "window": list(self._window), "ended": sorted(self._ended)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage, self._ended = state["stage"], set(state["ended"])
        self._began = state.get("began", 0)  # missing in older checkpoints
        self._window = deque(state["window"], maxlen=self._window.maxlen)


class Mixture(_Stages):
    """Shares of the environments per stage; all stages are trained concurrently.

        share_s = m / S + (1 - m) p_s (1 - p_s) / sum_r p_r (1 - p_r),    m = curriculum_mixture

    p_s is the solved rate of the last `curriculum_episodes` episodes of stage s, 1/2 before the first; p (1 - p) is the
    learnability of Rutherford et al. 2024, "No Regrets", section 4. Shares are recomputed after that many episodes over
    all stages, at least one per environment, and change only if one differs by CHANGE; then all episodes restart.
    """

    CHANGE = 0.05
    is_last = False  # False: episodes include those of stages other than the configured environment

    def __init__(self, config: LevelsConfig, fields: Sequence[str], num_envs: int, actor_envs: int) -> None:
        super().__init__(config, fields, num_envs)
        self._actor_envs = actor_envs
        first = config.first_stage
        assert not isinstance(first, int)
        self.stage: Shares = first  # Share of each stage
        self._windows = [deque[float](maxlen=config.curriculum_episodes) for _ in config.stages]
        self._new = 0

    def add(self, episodes: NDArray[np.floating[Any]], steps: int) -> bool:
        del steps
        for index, value in self._reported(episodes):
            actor, position = divmod(index, self._actor_envs)
            counts = widths(actor * self._actor_envs, self._actor_envs, self.stage)
            self._windows[int(np.searchsorted(np.cumsum(counts), position, side="right"))].append(value)
            self._new += 1
        if self._new < self.config.curriculum_episodes or len(self._ended) < self._num_envs:
            return False
        self.begin_episodes()
        shares = self._shares()
        if max(abs(new - old) for new, old in zip(shares, self.stage, strict=True)) < self.CHANGE:
            return False
        self.stage = shares
        return True

    def begin_episodes(self) -> None:
        self._ended.clear()
        self._new = 0

    def _shares(self) -> Shares:
        rates = [_mean(window) if window else 0.5 for window in self._windows]
        scores = [rate * (1 - rate) for rate in rates]
        even, total = self.config.curriculum_mixture / len(scores), sum(scores)
        if total <= 0:
            return (1 / len(scores),) * len(scores)
        return tuple(even + (1 - self.config.curriculum_mixture) * score / total for score in scores)

    def metrics(self) -> dict[str, float]:
        """Return the share and the solved rate of each stage; stages are counted from 1."""
        shares = {f"curriculum/share_{stage}": share for stage, share in enumerate(self.stage, 1)}
        windows = enumerate(self._windows, 1)
        return shares | {f"curriculum/solved_{stage}": _mean(window) for stage, window in windows if window}

    def __str__(self) -> str:
        parts = zip(self.stage, self.config.stages, strict=True)
        return "mixture of " + ", ".join(f"{share:.0%} {in_words(stage)}" for share, stage in parts)

    def state_dict(self) -> dict[str, Any]:
        windows = [list(window) for window in self._windows]
        return {"shares": list(self.stage), "windows": windows, "ended": sorted(self._ended), "new": self._new}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage, self._ended, self._new = tuple(state["shares"]), set(state["ended"]), state["new"]
        for window, values in zip(self._windows, state["windows"], strict=True):
            window.clear()
            window.extend(values)


def make_curriculum(
    config: LevelsConfig, fields: Sequence[str], num_actors: int, actor_envs: int
) -> Curriculum | Mixture:
    """Create the curriculum of a learner, sequential or mixed; `num_actors` is 0 if it varies."""
    common = config, fields, num_actors * actor_envs
    return Mixture(*common, actor_envs) if config.curriculum_mixture else Curriculum(*common)
