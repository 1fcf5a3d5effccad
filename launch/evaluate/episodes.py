"""Statistics of a trained agent's episodes: means and rates with 95% confidence intervals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ...actors.episodes import Episodes, known
from ...actors.unroll import EPISODE_COLUMNS

CONFIDENCE = 0.95
RATES = ("solved",)  # Episode fields that are 0 or 1
MOST_VALUES = 30  # Maximum number of values of a field by which results are split


class Estimate(NamedTuple):
    """A mean and its 95% confidence interval, whose bounds are nan for a single episode."""

    mean: float
    low: float
    high: float

    def plain(self) -> dict[str, float | None]:
        """The values for JSON, which has no nan."""
        return {name: x if np.isfinite(x) else None for name, x in self._asdict().items()}


def mean_interval(values: NDArray[np.floating[Any]]) -> Estimate:
    """The mean of independent values [K], with Student's t interval."""
    values = values.astype(np.float64)
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, np.nan, np.nan)
    half = float(stats.sem(values) * stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return Estimate(mean, mean - half, mean + half)


def rate_interval(outcomes: NDArray[np.floating[Any]]) -> Estimate:
    """The rate of ones among independent outcomes [K] of 0 or 1, with Wilson's score interval (Wilson 1927)."""
    result = stats.binomtest(int(np.sum(outcomes)), len(outcomes))
    return Estimate(float(result.statistic), *map(float, result.proportion_ci(CONFIDENCE, "wilson")))


class Group(NamedTuple):
    """Estimates from episodes of one kind."""

    episodes: int
    estimates: dict[str, Estimate]
    """Estimates of `return`, `length` and the environment's episode fields, if any episode has them."""

    def plain(self) -> dict[str, Any]:
        rounded = {name: Estimate(*(round(x, 6) for x in y)).plain() for name, y in self.estimates.items()}
        return {"episodes": self.episodes} | rounded


class Summary(NamedTuple):
    """Estimates from all episodes, and from those of each kind of level."""

    all: Group
    split: dict[str, dict[int, Group]]
    """Estimates by level field, then by the field's value."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Estimates of all episodes: `return`, `length`, and the environment's fields, such as `solved`."""
        return self.all.estimates

    def plain(self, member: int) -> dict[str, Any]:
        """The results of a member for JSON: all episodes, and those of each kind of level."""
        split = {name: {k: group.plain() for k, group in groups.items()} for name, groups in self.split.items()}
        return {"member": member, "all": self.all.plain(), "split": split}

    def __str__(self) -> str:
        parts = [f"{name} {x.mean:.3f} [{x.low:.3f}, {x.high:.3f}]" for name, x in self.estimates.items()]
        return f"{self.all.episodes:,} episodes: {', '.join(parts)}"


def summarize(
    episodes: Episodes, fields: Sequence[str], level_fields: Sequence[str], *, by_environment: bool = False
) -> Summary:
    """Compute estimates from the episodes of `play`, with columns named `fields`, split by those of `level_fields` with
    few integer values. `by_environment`: each environment keeps its level, so its episodes are not independent, and
    estimates are over the means of the environments."""
    names = (*EPISODE_COLUMNS[1:], *fields)
    columns = dict(zip(names, episodes[:, 1:].T, strict=True))
    reported = dict(zip(names, known(episodes[:, 1:]).T, strict=True))
    outcomes = {name: column for name, column in columns.items() if name not in level_fields}

    def group(chosen: NDArray[np.bool_]) -> Group:
        estimates: dict[str, Estimate] = {}
        for name, column in outcomes.items():
            counted = chosen & reported[name]
            values = column[counted]
            if by_environment:
                _, which, count = np.unique(episodes[counted, 0], return_inverse=True, return_counts=True)
                values = np.bincount(which, values) / count
            if len(values):
                rate = name in RATES and not by_environment
                estimates[name] = rate_interval(values) if rate else mean_interval(values)
        return Group(int(chosen.sum()), estimates)

    split: dict[str, dict[int, Group]] = {}
    for name in level_fields:
        values = np.unique(columns[name])
        if len(values) <= MOST_VALUES and (values == np.round(values)).all():
            split[name] = {int(value): group(columns[name] == value) for value in values}
    return Summary(group(np.ones(len(episodes), np.bool_)), split)
