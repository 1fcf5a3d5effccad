"""Decide which members copy which others: pure, seeded functions of recorded scores.

A decision depends only on the arguments of `decide`, all of which are in one line of a run's population.jsonl, so
every line can be verified separately.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from .config import PopulationConfig
from .search_space import Values

_FIRST, _GENERATION, _REPLACEMENT = 0x9B70, 0x9B71, 0x9B72
"""Keys of the population's random streams, distinct from those of environments and weights."""

Scores = Sequence[Sequence[float]]  # Returns of each member's last episodes, in order, at most `window` of them


class Decision(NamedTuple):
    """Decision about one member, and its reason."""

    member: int
    opponent: int | None  # Other member in the comparison, if any
    p_value: float | None  # p-value of Welch's t-test between the two; None without a test, or if all scores are equal
    mean: float | None  # Mean score; None without scores
    opponent_mean: float | None
    copy: bool  # Whether weights and optimizer state of the opponent are copied
    reason: str
    old: Values  # Settings of the member before the decision
    new: Values  # Settings of the member after the decision


def initial_values(config: PopulationConfig, seed: int, members: int) -> list[Values]:
    """Sample the initial settings of every member."""
    rng = _stream(seed, _FIRST, 0)
    return [{x.setting: x.sample(rng) for x in config.explored} for _ in range(members)]


def decide(
    config: PopulationConfig,
    seed: int,
    generation: int,
    evaluated: Sequence[int],
    scores: Scores,
    values: Sequence[Values],
) -> list[Decision]:
    """Make a decision about each evaluated member from the scores and explored settings of all members. `generation` is
    the index of the evaluation, from 1. Decisions apply simultaneously: if A copies B and B copies C, A gets B's
    previous weights."""
    rng = _stream(seed, _GENERATION, generation)
    decide_one = _compare_with_random if config.scheme == "lp-rnn" else _truncate
    return [decide_one(config, rng, member, scores, values) for member in evaluated]


def replace_failing(
    config: PopulationConfig,
    seed: int,
    step: int,
    failing: Sequence[int],
    healthy: Sequence[int],
    scores: Scores,
    values: Sequence[Values],
) -> list[Decision]:
    """Replace each member whose loss stays non-finite with a copy of the best healthy member, if there is one. The best
    has the highest mean score; members without scores rank last. Settings mutate under truncation, where they may be
    the cause, and stay the same under lp-rnn. `step` seeds the randomness."""
    if not healthy:
        return []
    best = max(healthy, key=lambda member: (_mean(scores[member]) if scores[member] else -math.inf, -member))
    decisions: list[Decision] = []
    for member in failing:
        rng = _stream(seed, _REPLACEMENT, step, member)
        mean, best_mean = (_mean(scores[m]) if scores[m] else None for m in (member, best))
        new = _mutate(config, values[best], rng) if config.scheme == "truncation" else dict(values[member])
        reason = f"non-finite loss for {config.patience} updates"
        decisions.append(Decision(member, best, None, mean, best_mean, True, reason, dict(values[member]), new))
    return decisions


def welch(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Two-sided p-value for equal means, without assuming equal variances (Welch 1947); None if all scores are equal.
    t = (m1 - m2) / sqrt(s1^2/n1 + s2^2/n2), with Welch-Satterthwaite degrees of freedom."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # two constant samples: p is 0, or nan if they are equal
        test: Any = stats.ttest_ind(theirs, ours, equal_var=False)  # scipy's stubs lack the fields of the result
    p = float(test.pvalue)
    return None if math.isnan(p) else p


def _compare_with_random(
    config: PopulationConfig, rng: np.random.Generator, member: int, scores: Scores, values: Sequence[Values]
) -> Decision:
    """LP-RNN paper, section 5.2: copy a random other member's weights if a t-test finds it better."""
    mean, old = _mean(scores[member]), values[member]
    others = [other for other in _comparable(config, scores) if other != member]
    if not others:
        return _keep(member, mean, old, "no other member has a full window")
    opponent = others[int(rng.integers(len(others)))]
    theirs, p = _mean(scores[opponent]), welch(scores[member], scores[opponent])
    copy = theirs > mean and p is not None and p < config.p_value
    if copy:
        reason = f"the opponent is better, p = {p:.3g} < {config.p_value:g}"
    elif theirs > mean and p is not None:
        reason = f"the opponent may be better, but p = {p:.3g} is not below {config.p_value:g}"
    else:
        reason = "the opponent is no better"
    return Decision(member, opponent, p, mean, theirs, copy, reason, dict(old), dict(old))


def _truncate(
    config: PopulationConfig, rng: np.random.Generator, member: int, scores: Scores, values: Sequence[Values]
) -> Decision:
    """Truncation selection (Jaderberg et al. 2017, section 4.1): the worst copy the best and explore from there."""
    mean, old = _mean(scores[member]), values[member]
    ranked = sorted(_comparable(config, scores), key=lambda m: (_mean(scores[m]), m))
    few = max(1, int(config.quantile * len(scores)))
    worst, best = ranked[:few], ranked[-few:]
    if len(ranked) < 2 * few:
        return _keep(member, mean, old, f"only {len(ranked)} members have a full window")
    if member not in worst:
        return _keep(member, mean, old, f"not among the worst {few}")
    opponent = best[int(rng.integers(len(best)))]
    theirs = _mean(scores[opponent])
    if not theirs > mean:
        return _keep(member, mean, old, "the best are no better")
    reason, new = f"among the worst {few}, copies one of the best {few}", _mutate(config, values[opponent], rng)
    return Decision(member, opponent, None, mean, theirs, True, reason, dict(old), new)


def _keep(member: int, mean: float, values: Values, reason: str) -> Decision:
    return Decision(member, None, None, mean, None, False, reason, dict(values), dict(values))


def _mutate(config: PopulationConfig, values: Values, rng: np.random.Generator) -> Values:
    """Resample every setting with probability `resample`, else perturb it (Jaderberg et al. 2017, section 4.1)."""
    return {
        x.setting: x.sample(rng)
        if rng.random() < config.resample
        else x.perturb(values[x.setting], config.factors, rng)
        for x in config.explored
    }


def _comparable(config: PopulationConfig, scores: Scores) -> list[int]:
    return [member for member, returns in enumerate(scores) if len(returns) >= config.window]


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)  # exact, so the same on every machine


def _stream(seed: int, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
