"""Statistics of comparisons against slow statements of their definitions, scipy's, and a complete enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from engram.launch.compare.statistics import (
    Estimate,
    curve_of,
    improvement,
    improvement_of,
    interquartile_mean,
    interquartile_mean_of,
)

RNG = np.random.default_rng(3)
STRATA = [RNG.normal(size=4), RNG.normal(size=3), RNG.normal(size=5)]
OTHERS = [RNG.normal(0.5, size=3), RNG.normal(0.5, size=3), RNG.normal(0.5, size=2)]


def slow_interquartile_mean(values: list[float]) -> float:
    """Sort, drop a quarter at either end (rounded down), average the rest."""
    ordered, cut = sorted(values), int(0.25 * len(values))
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def slow_improvement(x: list[list[float]], y: list[list[float]]) -> float:
    """Pairs that `x` wins, a tie counting half, by environment."""
    parts: list[float] = []
    for a, b in zip(x, y, strict=True):
        wins = sum(1.0 if p > q else 0.5 if p == q else 0.0 for p in a for q in b)
        parts.append(wins / (len(a) * len(b)))
    return sum(parts) / len(parts)


@pytest.mark.parametrize("number", range(1, 14))
def test_interquartile_mean(number: int) -> None:
    scores = RNG.normal(size=number)
    found = interquartile_mean(scores)
    assert found == pytest.approx(slow_interquartile_mean(list(scores)), abs=1e-12)
    assert found == pytest.approx(stats.trim_mean(scores, 0.25), abs=1e-12)


def test_improvement_is_the_mean_over_environments_of_mann_whitneys_u() -> None:
    x = [np.array([1.0, 2.0, 2.0]), np.array([0.0, 5.0])]
    y = [np.array([2.0, 0.0]), np.array([5.0, 5.0, 1.0])]
    found = improvement(x, y)
    assert found == pytest.approx(slow_improvement([list(a) for a in x], [list(b) for b in y]), abs=1e-12)
    u = [stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(x, y, strict=True)]
    assert found == pytest.approx(np.mean(u), abs=1e-12)
    assert found + improvement(y, x) == pytest.approx(1.0, abs=1e-12)


def are_quantiles(found: Estimate, every: list[float]) -> bool:
    """Whether the bounds are the 2.5% and 97.5% quantiles of a discrete distribution, within 1%."""
    values, tiny = np.array(every), 1e-9
    return all(
        np.mean(values < bound - tiny) - 0.01 <= share <= np.mean(values <= bound + tiny) + 0.01
        for bound, share in ((found.low, 0.025), (found.high, 0.975))
    )


def all_resamples(values: list[float]) -> list[tuple[float, ...]]:
    return list(itertools.product(values, repeat=len(values)))


def test_the_interval_of_the_mean_is_that_of_all_resamples_within_environments() -> None:
    x = [[1.0, 4.0, 2.0, 7.0], [10.0, 30.0, 5.0]]
    every = [slow_interquartile_mean([*a, *b]) for a in all_resamples(x[0]) for b in all_resamples(x[1])]
    found = interquartile_mean_of([np.array(each) for each in x])
    assert found.value == pytest.approx(slow_interquartile_mean([*x[0], *x[1]]))
    assert are_quantiles(found, every)


def test_the_interval_of_the_improvement_is_that_of_all_resamples_within_environments() -> None:
    x, y = [[1.0, 4.0, 2.0], [30.0, 0.0]], [[3.0, 1.0], [10.0, 20.0]]
    every = [
        slow_improvement([list(a), list(b)], [list(c), list(d)])
        for a in all_resamples(x[0])
        for b in all_resamples(x[1])
        for c in all_resamples(y[0])
        for d in all_resamples(y[1])
    ]
    found = improvement_of([np.array(each) for each in x], [np.array(each) for each in y])
    assert are_quantiles(found, every)


def test_intervals_contain_the_value_and_are_the_same_again() -> None:
    for find in (lambda: interquartile_mean_of(STRATA), lambda: improvement_of(STRATA, OTHERS)):
        found = find()
        assert found.low < found.value < found.high
        assert find() == found


def test_one_run_has_no_interval() -> None:
    found = interquartile_mean_of([np.array([2.0]), np.array([4.0])])
    assert found.value == 3.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_a_curve_is_the_interquartile_mean_at_every_step() -> None:
    values = RNG.normal(size=(5, 7)) + np.arange(7)
    middle, low, high = curve_of(values)
    expected = [slow_interquartile_mean(list(column)) for column in values.T]
    np.testing.assert_allclose(middle, expected, atol=1e-12)
    assert np.all(low <= middle)
    assert np.all(middle <= high)
    assert np.all(low >= values.min(0))
