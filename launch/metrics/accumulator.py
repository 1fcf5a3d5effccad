"""Statistics between two rows of metrics: means over updates, finished episodes, and time by activity."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...actors.episodes import known, known_means
from ...actors.unroll import EPISODE_COLUMNS

WINDOW, PER_ENVIRONMENT = 1000, 4
"""Size of the window of recent episodes: the larger of a minimum and a number per environment, since parallel
environments end their episodes in groups."""
TIMERS = ("learner_busy", "queue_wait")
LAST_VALUES = ("learner/lr", "learner/skipped")
"""Metrics that report the last value, like population/ and eval/; others report the mean over updates."""


class Settled(NamedTuple):
    """The mean return of a full window of episodes."""

    mean: float
    episodes: int
    error: float | None  # Standard error of the mean, if available


class Accumulator:
    """Statistics since the last row. `fields` are the environment's own columns of episodes, after EPISODE_COLUMNS."""

    def __init__(self, num_actors: int, fields: Sequence[str] = (), envs_per_actor: int = 1) -> None:
        self.num_actors, self._envs_per_actor = num_actors, envs_per_actor
        self._names = (*EPISODE_COLUMNS[1:], *fields)
        self._full = max(WINDOW, PER_ENVIRONMENT * num_actors * envs_per_actor)
        self._window: deque[list[float]] = deque(maxlen=self._full)
        self._steps = self._failures = self._failures_reported = 0
        self._stored: int | None = None
        self.begin_episodes()
        self._begin_row()

    def _begin_row(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = dict.fromkeys(TIMERS, 0.0)
        self._sums: dict[str, list[float]] = {}  # Sum of the finite values of each metric, and their number
        self._last: dict[str, float] = {}
        self._episode_sums = {name: [0.0, 0.0] for name in self._names}  # Likewise, of each episode field
        self._updates = self._num_episodes = self._unrolls = 0
        self._acting = 0.0

    def add_seconds(self, name: str, seconds: float) -> None:
        """Count seconds toward `perf/NAME`; `name` is one of TIMERS."""
        self._seconds[name] += seconds

    def add_update(self, metrics: Mapping[str, float]) -> None:
        """Add an update and the learner's metrics. Non-finite values are excluded from the means."""
        self._updates += 1
        self.add_metrics(metrics)

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics, of which the next row contains the means, or the last values of LAST_VALUES."""
        for name, value in metrics.items():
            if name in LAST_VALUES or name.startswith(("population/", "eval/")):
                self._last[name] = value
                continue
            total = self._sums.setdefault(name, [0.0, 0.0])
            if math.isfinite(value):
                total[0] += value
                total[1] += 1.0

    def note(self, metrics: Mapping[str, float]) -> None:
        self._last |= metrics

    def add_episodes(self, episodes: NDArray[np.floating[Any]]) -> None:
        """Add finished episodes [K, 3 + F], in the format of `Unroll.episodes`; the means exclude nan (unknown)."""
        if not len(episodes):
            return
        rows = episodes[:, 1:]
        counted = known(rows)
        sums = np.where(counted, rows, 0.0).sum(0, dtype=np.float64).tolist()
        for total, value, count in zip(self._episode_sums.values(), sums, counted.sum(0).tolist(), strict=True):
            total[0] += value
            total[1] += count
        self._num_episodes += len(rows)
        self._window.extend(rows.tolist())
        self._begun += len(rows)
        self._ended.update(episodes[:, 0].astype(int).tolist())

    def add_unroll(self, seconds: float) -> None:
        """Count an unroll that has arrived, and its acting time in seconds."""
        self._acting += seconds
        self._unrolls += 1

    def note_lag(self, largest: float) -> None:
        self._last["perf/policy_lag_max"] = max(largest, self._last.get("perf/policy_lag_max", largest))

    def note_actors(self, at_work: int, failures: int, stored_bytes: int | None = None) -> None:
        """Set the numbers of active actors and of failures since the run last started, and of stored bytes."""
        self.num_actors, self._failures, self._stored = at_work, failures, stored_bytes

    def take(self, steps: int) -> dict[str, float]:
        """Return the metrics up to step `steps`, and reset; without an update, return nothing and do not reset."""
        if not self._updates:
            return {}
        wall = max(time.perf_counter() - self._started, 1e-9)
        metrics = {name: total / n if n else math.nan for name, (total, n) in self._sums.items()} | self._last
        metrics |= {f"episode/{name}": total / n for name, (total, n) in self._episode_sums.items() if n}
        metrics["perf/env_steps_per_second"] = (steps - self._steps) / wall
        metrics |= {f"perf/{name}": seconds / wall for name, seconds in self._seconds.items()}
        metrics["perf/actors"] = float(self.num_actors)
        metrics["perf/actor_failures"] = float(self._failures - self._failures_reported)
        self._failures_reported = self._failures
        if self._stored is not None:
            metrics["perf/object_store_mb"] = self._stored / 1e6
        if self._unrolls:
            metrics["perf/actor_busy"] = self._acting / (wall * max(self.num_actors, 1))
        self._steps = steps
        self._begin_row()
        return metrics

    def window(self) -> dict[str, float]:
        return known_means(self._names, np.array(self._window)) if self._window else {}

    @property
    def episodes(self) -> int:
        return len(self._window)

    def begin_anew(self) -> None:
        """Reset the window for new weights or a new stage, whose episodes begin now."""
        self._window.clear()
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Note that every environment begins a new episode, as at the start: short episodes end first."""
        self._begun = 0  # Episodes that have ended since then
        self._ended: set[int] = set()  # Environments in which an episode has ended since then

    def settled(self) -> Settled | None:
        """The mean return of the window; None until a full window of episodes has ended since `begin_episodes`, with
        at least one in every environment."""
        if self._begun < self._full or len(self._ended) < self.num_actors * self._envs_per_actor:
            return None
        returns = np.array([row[0] for row in self._window])
        return Settled(float(returns.mean()), self._full, float(returns.std(ddof=1) / math.sqrt(self._full)))

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers and lists; the clock pauses until `load_state_dict`."""
        return {
            "steps": self._steps,
            "wall": time.perf_counter() - self._started,
            "timers": dict(self._seconds),
            "sums": {name: list(total) for name, total in self._sums.items()},
            "last": dict(self._last),
            "counts": [self._updates, self._num_episodes, self._unrolls],
            "acting": self._acting,
            "names": list(self._names),
            "episodes": [total for total, _ in self._episode_sums.values()],
            "known": [count for _, count in self._episode_sums.values()],
            "window": [list(row) for row in self._window],
            "begun": self._begun,
            "ended": sorted(self._ended),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._started = time.perf_counter() - state["wall"]
        self._seconds = {name: state["timers"][name] for name in TIMERS}
        self._sums = {name: list(total) for name, total in state["sums"].items()}
        self._last = dict(state["last"])
        self._updates, self._num_episodes, *_, self._unrolls = state["counts"]  # older runs also counted bytes
        self._acting = state["acting"]
        # Fields may have changed since the run was saved; older runs lack the names and counts.
        names = state.get("names", self._names)
        counts = state.get("known", [self._num_episodes] * len(names))
        saved = {name: list(pair) for name, *pair in zip(names, state["episodes"], counts, strict=False)}
        self._episode_sums = {name: saved.get(name, [0.0, 0.0]) for name in self._names}
        self._window.clear()
        for row in state["window"]:
            values = dict(zip(names, row, strict=False))
            self._window.append([values.get(name, math.nan) for name in self._names])
        self._begun, self._ended = state.get("begun", 0), set(state.get("ended", ()))
