"""A model of an update's time on many hosts, from parts that were measured by themselves.

    T = C / (q - b) + latency * (2 E + 4 + w)                        seconds per update, for more than one learner
    C = k (environment(n) + inference(n) + learning(m)) + u          CPU seconds of the first host
        + k reduce + r + d (L - 1) + p (A - 1)

n environments of its actor, m of its learner, L learners and A actors, E short exchanges per update, each of which
takes a link's latency twice (Gloo announces what it sends), and the gradient's exchange, which takes it four times;
q cores of a host. Environment, inference, learning and reduce are measured, the others are fitted: b (cores for Ray),
k (how much slower parts are alongside each other), u (an update's own cost: requests, publication), r (of being in a
group), d (of each other learner), p (of each other actor), w (further latencies: Ray's calls).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

FITTED = {"b": 0.02, "k": 1.5, "u": 0.01, "r": 0.02, "d": 0.005, "p": 0.002, "w": 4.0}
"""Parameters and where the fit begins; cores, a factor, CPU seconds, and a count."""
MOST = {"b": 0.08}


class Point(NamedTuple):
    """A run on equal hosts, of which each has an actor."""

    case: str
    learners: int
    actors: int
    environments: int
    """Of an update."""
    cores: float
    latency: float
    """One way, seconds."""


class Parts:
    """CPU seconds of a case's parts per update, by environments.

    Args:
        measured: as `parts.py cpu` reports it.
        exchanges: rows of `parts.py reduce`.
    """

    def __init__(self, measured: Mapping[str, Any], exchanges: Sequence[Mapping[str, float]]) -> None:
        self.unroll_length, self.parameters = measured["unroll_length"], measured["parameters"]
        self.short_exchanges = measured["exchanges"] - 1
        self._widths = np.array([float(width) for width in measured["ms"]])
        self._ms = measured["ms"]
        short = [row["ms_cpu"] for row in exchanges if row["parameters"] < 100]
        long = [row for row in exchanges if row["parameters"] >= 100]
        self._short = float(np.median(short)) / 1000
        self._per_value = float(np.median([(row["ms_cpu"] / 1000 - self._short) / row["parameters"] for row in long]))

    def acting(self, environments: float) -> float:
        """Environment and inference."""
        return self._line("env", environments) + self._line("infer", environments)

    def learning(self, environments: float) -> float:
        """Loss, gradient and optimizer."""
        return self._line("learn", environments)

    def reduce(self) -> float:
        """All exchanges of one learner."""
        return (self.short_exchanges + 1) * self._short + self.parameters * max(self._per_value, 0.0)

    def _line(self, part: str, environments: float) -> float:
        """Interpolated, beyond the measured widths continued in a straight line."""
        seconds = np.array([self._ms[str(int(width))][part] for width in self._widths]) / 1000
        if environments <= self._widths[-1]:
            return float(np.interp(environments, self._widths, seconds))
        slope = (seconds[-1] - seconds[-2]) / (self._widths[-1] - self._widths[-2])
        return float(seconds[-1] + slope * (environments - self._widths[-1]))


def terms(point: Point, parts: Parts, fitted: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part of an update's time."""
    group = float(point.learners > 1)
    rate = point.cores - fitted["b"]
    cpu = {
        "acting": fitted["k"] * parts.acting(point.environments / point.actors),
        "learning": fitted["k"] * parts.learning(point.environments / point.learners),
        "publish": fitted["u"] + fitted["p"] * (point.actors - point.learners),
        "reduce": group * fitted["k"] * parts.reduce(),
        "coordination": group * (fitted["r"] + fitted["d"] * (point.learners - 1)),
    }
    latency = group * point.latency * (2 * parts.short_exchanges + 4 + fitted["w"])
    return {name: seconds / rate for name, seconds in cpu.items()} | {"latency": latency}


def steps_per_second(point: Point, parts: Parts, fitted: Mapping[str, float]) -> float:
    """Environment steps learned from."""
    return point.environments * parts.unroll_length / sum(terms(point, parts, fitted).values())


def fit(points: Sequence[Point], speeds: Sequence[float], parts: Mapping[str, Parts]) -> dict[str, float]:
    """The parameters that fit best, errors taken relative to the speed."""
    names = list(FITTED)

    def errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = dict(zip(names, values.tolist(), strict=True))
        predicted = [steps_per_second(point, parts[point.case], fitted) for point in points]
        return np.log(predicted) - np.log(speeds)

    bounds = ([0.0] * len(names), [MOST.get(name, np.inf) for name in names])
    solution = least_squares(
        errors, list(FITTED.values()), bounds=bounds, loss="soft_l1", f_scale=0.1, x_scale=list(FITTED.values())
    )
    return dict(zip(names, solution.x.tolist(), strict=True))
