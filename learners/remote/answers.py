"""Responses of learners in other processes, which may be lost while this process waits."""

import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...actors.failures import ActorFailureError
from ..group import GroupLostError, LearnerLossError

PATIENCE = 2.0
"""Seconds of waiting for other learners' batches between checks for signals."""
SILENT_SECONDS = 5.0
"""Seconds without a response to a ping after which a learner counts as lost; learners respond even while compiling."""
PING_SECONDS = 1.0  # Seconds between two pings; each interrupts the other learner's update for a millisecond
START_SECONDS = 600.0
"""Seconds within which a learner's process must start, which may include booting a node."""
MOST_LOSSES = 10
"""Consecutive losses of learners that a run survives; the next one ends it."""


def has_arrived(ref: Any) -> bool:
    """Whether a response has arrived; an error due to the loss of its process does not count."""
    with suppress(RayError):
        ray.get(ref, timeout=0)
        return True
    return False


def answer_of(ref: Any, seconds: float) -> Any:
    """Return a response of another learner.

    Raises GroupLostError if its process is lost or has left the group, and the ActorFailureError of its actors.
    """
    try:
        return ray.get(ref, timeout=seconds)
    except RayTaskError as problem:
        if isinstance(problem.cause, ActorFailureError):
            raise problem.cause from None
        if isinstance(problem.cause, GroupLostError):
            raise GroupLostError(str(problem.cause)) from None
        raise LearnerLossError(f"another learner failed:\n{problem}") from problem
    except RayError as problem:
        lines = str(problem).splitlines() or [type(problem).__name__]
        raise GroupLostError(f"a learner is lost ({lines[0]})") from problem


class Pulse:
    """Pings of another learner's process.

    Args:
        handle: Ray's handle of the process.
        name: name of the learner in messages.
    """

    def __init__(self, handle: Any, name: str) -> None:
        self._handle, self._name = handle, name
        self._ping: Any = None
        self._sent = 0.0

    def check(self) -> None:
        """Raise GroupLostError if the process is dead or has not responded for too long."""
        now = time.monotonic()
        if self._ping is not None and ray.wait([self._ping], timeout=0)[0]:
            answer_of(self._ping, PATIENCE)
            self._ping = None
        if self._ping is None:
            if now - self._sent > PING_SECONDS:
                self._ping, self._sent = self._handle.ping.remote(), now
        elif now - self._sent > SILENT_SECONDS:
            raise GroupLostError(f"{self._name} has not responded for {SILENT_SECONDS:.0f} s")

    def reset(self) -> None:
        """Stop waiting for the response to an earlier ping."""
        self._ping = None
