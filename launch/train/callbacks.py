"""Callbacks of a run, for users' code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...actors.unroll import Unroll
from ...agents.agent import Agent
from ...learners.learner import Learner

ROW, UPDATE, CHECKPOINT = "on_row", "on_update", "on_checkpoint"


class Update(NamedTuple):
    """A finished update of a learner: the argument of `on_update`."""

    step: int
    """Environment steps that this learner has learned from."""
    member: int
    """Index in the population; 0 without a population."""
    learner: Learner
    batch: Unroll
    """The unrolls of this update: T steps of B environments, time-major."""
    path: Path  # Run directory

    @property
    def agent(self) -> Agent:
        """The network with its new weights."""
        return self.learner.agent


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The callbacks of a run. Each returns True to end the run with a checkpoint and None or False to continue. An
    exception also ends the run with a checkpoint, and `engram.train` raises it."""

    on_row: Callable[[dict[str, float]], Any] | None = None
    """Called with every row of metrics by name, and with `step`: environment steps of all members."""
    on_update: Callable[[Update], Any] | None = None
    """Called after every update in the training process; may return metrics for the next row, {name: value}."""
    on_checkpoint: Callable[[Path], Any] | None = None
    """Called with the directory of every checkpoint after it has been written."""

    def __bool__(self) -> bool:
        return bool(self.on_row or self.on_update or self.on_checkpoint)
