"""`--track NAME`: every row of metrics, and every video, also goes to a tracker, with the same names.

A third party adds one with an entry point in the group `engram.trackers` or names it as `module:Class`. Losing a
tracker costs one warning, never the run.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...base.errors import EngramError
from ...base.registry import Registry

TRACKERS = {"wandb": ".wandb:WandB"}


class Tracker:
    """Base class of trackers; a subclass overrides `write`, and other methods if needed.

    Args:
        run: the run's directory, or a member's; it exists.
        name: name of the run at the service.
        group: common name of a population's members; None for a single learner.
        config: the run's configuration, nested dicts of plain values.
    """

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None: ...

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record one row: finite metrics by name, after `step` environment steps."""
        raise NotImplementedError

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Record a video, a file in GIF format."""

    def close(self) -> None:
        """Wait until all is written."""


class Tracking:
    """A tracker whose exceptions after the start cost one warning."""

    def __init__(self, tracker: Tracker, name: str, report: Callable[[str], None]) -> None:
        self._tracker, self._name, self._report, self._warned = tracker, name, report, False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record one row; values that are not finite are omitted."""
        finite = {name: x for name, x in values.items() if math.isfinite(x)}
        self._attempt(lambda: self._tracker.write(step, finite))

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Record a video, a file in GIF format."""
        self._attempt(lambda: self._tracker.video(step, name, gif))

    def close(self) -> None:
        """Wait until all is written."""
        self._attempt(self._tracker.close)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as problem:
            if not self._warned:
                self._warned = True
                self._report(f"{self._name} does not accept the metrics: {problem}; training continues without it")


_REGISTRY = Registry("tracker", Tracker, TRACKERS, __package__)


def tracker_class(name: str) -> type[Tracker]:
    """The class of a tracker: a registered name or `module:Class`. Raises EngramError with the nearest names."""
    try:
        return _REGISTRY.find(name)
    except ImportError as problem:  # of engram's own
        what = f"track is {name!r}, which needs a package: pip install 'engram-rl[{name}]' ({problem})"
        raise EngramError(what) from problem


def make_tracking(
    name: str | None, directory: Path, folder: Path, config: dict[str, Any], report: Callable[[str], None]
) -> Tracking | None:
    """The tracker that --track names, for one learner.

    Args:
        name: name of the tracker; None for none.

    Raises:
        EngramError: the tracker cannot start.
    """
    if name is None:
        return None
    member = folder != directory
    run = f"{directory.name}-{folder.name}" if member else directory.name
    folder.mkdir(parents=True, exist_ok=True)
    made = tracker_class(name)
    try:
        tracker = made(folder, name=run, group=directory.name if member else None, config=config)
    except Exception as problem:  # services raise many kinds of exceptions, whose messages name the remedy
        raise EngramError(f"track is {name!r}, but: {problem}") from problem
    return Tracking(tracker, name, report)


def check_tracking(name: str | None) -> None:
    """Raise EngramError if a tracker is unknown or its package is missing."""
    if name is not None:
        tracker_class(name)
