"""Responses of learners in other processes, which may be lost meanwhile."""

from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...actors.failures import ActorFailureError
from ..group import GroupLostError, LearnerLossError


def has_arrived(ref: Any) -> bool:
    """Whether a response has arrived that is not the loss of its process."""
    with suppress(RayError):
        ray.get(ref, timeout=0)
        return True
    return False


def answer_of(ref: Any, seconds: float) -> Any:
    """Return a response of another learner.

    Raises GroupLostError if its process is lost or it has left the group, and the ActorFailureError of its actors.
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
