"""Population-based training: which members copy which others, and the state on which that depends.

A decision is a pure, seeded function of the arguments of `decide`, all of which are in one line of a run's
population.jsonl, so every line can be verified separately. The host of the members applies it to learners.
"""

import math
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .config import PopulationConfig, Values

_FIRST, _GENERATION = 0x9B70, 0x9B71
"""Keys of the population's random streams, distinct from those of environments and weights."""

Scores = Sequence[Sequence[float]]  # Returns of each member's last episodes, in order, at most `window` of them


class Decision(NamedTuple):
    member: int
    opponent: int | None  # Other member in the comparison, if any
    p_value: float | None  # p-value of Welch's t-test between the two; None without a test, or if all scores are equal
    mean: float  # Mean score
    opponent_mean: float | None
    copy: bool  # Whether weights and optimizer state of the opponent are copied
    reason: str
    old: Values  # Settings of the member before the decision
    new: Values  # Settings of the member after the decision


def initial_values(config: PopulationConfig, seed: int, members: int) -> list[Values]:
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
    """Decide about each evaluated member from the scores and explored settings of all members. `generation` counts from
    1. Decisions apply simultaneously: if A copies B and B copies C, A gets B's previous weights."""
    rng = _stream(seed, _GENERATION, generation)
    decide_one = _compare_with_random if config.scheme == "lp-rnn" else _truncate
    return [decide_one(config, rng, member, scores, values) for member in evaluated]


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
    reason = "the opponent is no better"
    if copy:
        reason = f"the opponent is better, p = {p:.3g} < {config.p_value:g}"
    elif theirs > mean and p is not None:
        reason = f"the opponent may be better, but p = {p:.3g} is not below {config.p_value:g}"
    return Decision(member, opponent, p, mean, theirs, copy, reason, dict(old), dict(old))


def _truncate(
    config: PopulationConfig, rng: np.random.Generator, member: int, scores: Scores, values: Sequence[Values]
) -> Decision:
    """Truncation selection (Jaderberg et al. 2017, section 4.1): the worst copy the best, then resample every setting
    with probability `resample`, else perturb it."""
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
    new = {
        x.setting: x.sample(rng)
        if rng.random() < config.resample
        else x.perturb(values[opponent][x.setting], config.factors, rng)
        for x in config.explored
    }
    reason = f"among the worst {few}, copies one of the best {few}"
    return Decision(member, opponent, None, mean, theirs, True, reason, dict(old), new)


def _keep(member: int, mean: float, values: Values, reason: str) -> Decision:
    return Decision(member, None, None, mean, None, False, reason, dict(values), dict(values))


def _comparable(config: PopulationConfig, scores: Scores) -> list[int]:
    return [member for member, returns in enumerate(scores) if len(returns) >= config.window]


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)  # exact, so the same on every machine


def _stream(seed: int, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class PopulationController:
    """State that decisions depend on."""

    def __init__(self, config: PopulationConfig, seed: int, members: int) -> None:
        self.config, self.seed, self.members = config, seed, members
        self.generation = 0
        self.values = initial_values(config, seed, members)  # Explored settings of every member; dicts never change
        self.ancestors = list(range(members))  # Initial member from whose weights each member descends
        self.episodes = [0] * members
        self._windows: list[deque[float]] = [deque(maxlen=config.window) for _ in range(members)]
        self._due_at = [config.warmup] * members  # Number of episodes of each member at its next evaluation

    def record(self, member: int, returns: NDArray[np.floating[Any]]) -> None:
        """Record returns [K] of finished episodes of a member; nan returns are only counted."""
        self.episodes[member] += len(returns)
        returns = returns[np.isfinite(returns)]
        # The shortest decimal that rounds to the same float32: exact in the log, with a third of the digits.
        self._windows[member].extend(float(str(np.float32(x))) for x in returns[-self.config.window :])

    def due(self, active: Iterable[int]) -> list[int]:
        """Find the members of `active` that are due for evaluation and have a full window."""
        return [
            m for m in active if self.episodes[m] >= self._due_at[m] and len(self._windows[m]) == self.config.window
        ]

    def evaluate(self, evaluated: Sequence[int]) -> list[Decision]:
        """Make decisions about these members, and record them."""
        self.generation += 1
        for member in evaluated:
            self._due_at[member] = self.episodes[member] + self.config.interval
        decisions = decide(self.config, self.seed, self.generation, evaluated, self.scores(), self.values)
        before = list(self.ancestors)
        for decision in decisions:
            if decision.copy:
                assert decision.opponent is not None
                self.values[decision.member] = dict(decision.new)
                self.ancestors[decision.member] = before[decision.opponent]
                self._windows[decision.member].clear()  # the returns do not belong to the new weights
        return decisions

    def scores(self) -> list[list[float]]:
        """List the returns in every member's window, oldest first."""
        return [list(window) for window in self._windows]

    def state_dict(self) -> dict[str, Any]:
        """Everything that later decisions depend on; the random stream is a function of seed and generation."""
        return {
            "generation": self.generation,
            "values": [dict(settings) for settings in self.values],
            "ancestors": list(self.ancestors),
            "episodes": list(self.episodes),
            "due_at": list(self._due_at),
            "windows": [np.array(window) for window in self._windows],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a population of the same size."""
        self.generation = state["generation"]
        self.values = [dict(settings) for settings in state["values"]]
        self.ancestors, self.episodes = list(state["ancestors"]), list(state["episodes"])
        self._due_at = list(state["due_at"])
        finite = [window[np.isfinite(window)] for window in state["windows"]]  # older runs also stored nan
        self._windows = [deque(window.tolist(), maxlen=self.config.window) for window in finite]
