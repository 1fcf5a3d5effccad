"""`--track NAME`: every row of metrics and every video also goes to a tracker: a built-in one, an entry point in the
group `engram.trackers`, or `module:Class`. A failing tracker causes one warning but never ends the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import EngramError, library_errors
from ...base.registry import Registry


class Tracker:
    """Base class of trackers; a subclass overrides `write`, and others if needed. `run` is an existing directory, of
    the run or a member; `name` is for the service, `group` for all members of a population (None for a single
    learner); `config` is the run's configuration as nested dicts of plain values."""

    def __init__(self, run: Path, *, name: str, group: str | None, config: dict[str, Any]) -> None: ...

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record one row: finite metrics by name, after `step` environment steps."""
        raise NotImplementedError

    def video(self, step: int, name: str, gif: bytes) -> None:
        """Record a video, a file in GIF format."""

    def close(self) -> None:
        """Wait until all is written."""


_REGISTRY = Registry("tracker", Tracker, {"wandb": ".wandb:WandB"}, __package__)


def tracker_class(name: str) -> type[Tracker]:
    """Find a tracker class by registered name or `module:Class`. Raises EngramError with the nearest names."""
    try:
        return _REGISTRY.find(name)
    except ImportError as problem:  # from a built-in tracker
        message = f"track is {name!r}, which needs a package: pip install 'engram-rl[{name}]' ({problem})"
        raise EngramError(message) from problem


def make_tracker(name: str, directory: Path, folder: Path, config: dict[str, Any]) -> Tracker:
    """Make the tracker of a learner whose metrics are in `folder`. Raises EngramError if it cannot start."""
    member = folder != directory
    folder.mkdir(parents=True, exist_ok=True)
    # Services raise many kinds of exceptions, whose messages name the remedy.
    with library_errors(f"track is {name!r}, but", Exception):
        return tracker_class(name)(
            folder,
            name=f"{directory.name}-{folder.name}" if member else directory.name,
            group=directory.name if member else None,
            config=config,
        )
