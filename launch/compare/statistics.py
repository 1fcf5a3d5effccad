"""Statistics over a few training runs: interquartile mean, probability of improvement, stratified bootstrap.

Definitions: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", section 4.
Scores of one curve are a list of strata, one per environment, each an array [R] with a score per run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..metrics.rows import Array

Strata = Sequence[Array]

RESAMPLES = 5000
COVERAGE = 0.95
_BOUNDS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)  # Quantiles of an interval
SEED = 0  # The same runs give the same intervals


class Estimate(NamedTuple):
    """A value with its bootstrap interval, whose bounds are nan if there is one run per stratum."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: Array) -> Array:
    """Mean [...] of the middle half of scores [..., N]: N // 4 of them are dropped at each end (section 4.3)."""
    n = scores.shape[-1]
    return np.sort(scores, -1)[..., n // 4 : n - n // 4].mean(-1)


def improvement(x: Strata, y: Strata) -> Array:
    """Probability [...] that a run of `x` (E strata [..., R_x]) has a higher score than a run of `y` ([..., R_y]),
    averaged over environments (section 4.3).

    P(X > Y) = 1 / E sum_e 1 / (R_x R_y) sum_i sum_j S(x_ei, y_ej), S = 1 if x > y, 1/2 if x = y, else 0.
    """
    means: list[Array] = []
    for scores, others in zip(x, y, strict=True):
        a, b = scores[..., :, None], others[..., None, :]
        means.append(((a > b) + 0.5 * (a == b)).mean((-2, -1)))
    return np.mean(means, 0)


def interquartile_mean_of(strata: Strata) -> Estimate:
    """Interquartile mean over all runs and environments, with the interval of a stratified bootstrap."""
    value = float(interquartile_mean(np.concatenate(strata)))
    samples = interquartile_mean(np.concatenate(_resample(strata, np.random.default_rng(SEED)), -1))
    return _estimate(value, samples, strata)


def improvement_of(x: Strata, y: Strata) -> Estimate:
    """`improvement` with the interval of a stratified bootstrap of both."""
    rng = np.random.default_rng(SEED)
    return _estimate(float(improvement(x, y)), improvement(_resample(x, rng), _resample(y, rng)), [*x, *y])


def curve_of(values: Array) -> tuple[Array, Array, Array]:
    """Interquartile mean [S] of R runs with `values` [R, S], and the bounds [S] of its bootstrap interval."""
    runs, rng = len(values), np.random.default_rng(SEED)
    samples = interquartile_mean(values[rng.integers(runs, size=(RESAMPLES // 5, runs))].swapaxes(1, 2))
    low, high = np.quantile(samples, _BOUNDS, axis=0)
    return interquartile_mean(values.T), low, high


def _resample(strata: Strata, rng: np.random.Generator) -> list[Array]:
    """Sample runs [RESAMPLES, R] with replacement within each stratum."""
    return [scores[rng.integers(len(scores), size=(RESAMPLES, len(scores)))] for scores in strata]


def _estimate(value: float, samples: Array, strata: Strata) -> Estimate:
    if max(map(len, strata)) == 1:
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(samples, _BOUNDS)
    return Estimate(value, float(low), float(high))
