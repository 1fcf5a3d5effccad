"""The state in a run's checkpoints, checked, and the metrics of the best one."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import refuse
from ...learners import checkpoints
from ...learners.checkpoints import CheckpointError
from ..config.imports import refuse_inside

_log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The best checkpoint of a run and the metrics by which it was chosen."""

    mean: float  # Mean return of the episodes
    step: int  # Step of the checkpoint, in steps of all members
    member: int  # The member of the population that played them
    episodes: int
    error: float | None  # Standard error of the mean of training episodes; None for evaluation episodes
    version: int | None = None  # Version of the evaluated weights; None for training episodes

    def gives_way_to(self, mean: float, error: float | None) -> bool:
        """Whether a checkpoint with another mean and standard error is better."""
        # Means of training and of evaluation episodes cannot be compared: the current kind wins.
        return not math.isfinite(self.mean) or mean >= self.mean or (self.error is None) != (error is None)

    def __str__(self) -> str:
        """The metrics as text."""
        if self.error is None:
            return f"mean return {self.mean:.3f} of {self.episodes:,} evaluation episodes"
        return f"mean return {self.mean:.3f} +- {1.96 * self.error:.3f} of the last {self.episodes:,} training episodes"


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; `best` is a Best or None. Raises CheckpointError if the checkpoint is damaged or is
    not the state of a run."""
    state = checkpoints.load(path)
    try:
        state["best"] = state["best"] and Best(*state["best"])
        refuse_inside(state.get("config", {}), path.absolute().parent.parent)
        _check(state)
    except (TypeError, ValueError, LookupError, AttributeError) as problem:
        raise CheckpointError(f"{path}: has no state of a run ({type(problem).__name__}: {problem})") from problem
    return state


def readable(directory: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Checkpoints and their states, newest first; a warning names the unusable ones."""
    for path in checkpoints.intact(directory):
        try:
            yield path, read(path)
        except CheckpointError as problem:
            _log.warning("skipped a checkpoint: %s", problem)


def _check(state: dict[str, Any]) -> None:
    """Raise TypeError, ValueError or KeyError if a state lacks entries that every command reads."""
    refuse(not state["members"], "it has no members")
    for member in state["members"]:
        missing = {"agent", "optimizer", "updates", "steps", "skipped"} - member["learner"].keys()
        if missing or "window" not in member["accumulator"]:
            raise KeyError(min(missing, default="window"))
        if not isinstance(member["learner"]["steps"], int):
            raise TypeError(f"learner/steps is {member['learner']['steps']!r}; expected int")
