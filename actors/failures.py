"""Failures of actors: training survives occasional ones; an actor that fails repeatedly ends it.

Over days of training, actors are killed, nodes are lost and environments raise exceptions. Unlike failures caused by a
bug, these do not recur in a replacement, so an actor's failures in a row are forgotten after FORGIVEN_AFTER unrolls.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..envs.arrays import ContractError

FORGIVEN_AFTER = 50  # Unrolls without a failure after which an actor's failures in a row are forgotten
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # Seconds before a replacement starts; doubled with each failure in a row.
_CHANGING = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")  # Differs between reports of one failure: addresses, ids, times


class ActorFailureError(RuntimeError):
    """Raised when an actor fails too often or its environment breaks the contract; the message contains the cause."""


class TransportDiedError(RuntimeError):
    """Raised when a Ray process that transports requests and unrolls has died; the message names it."""


@dataclass
class _Streak:
    first: str  # Traceback of the first failure
    count: int = 0
    unrolls: int = 0  # Unrolls since the last failure


class Failures:
    """Counter of each actor's failures, of which `allowed` in a row are tolerated; `report` displays each kind once."""

    def __init__(self, allowed: int, report: Callable[[str], None]) -> None:
        self.allowed, self.total = allowed, 0
        self._report = report
        self._streaks: dict[int, _Streak] = {}
        self._reported: set[str] = set()

    def add(self, number: int, trace: str, cause: object = None) -> None:
        """Record a failure of actor `number`. Raises ActorFailureError if there are too many, or if the cause is a
        ContractError, which would recur in every replacement."""
        if isinstance(cause, ContractError):
            raise ActorFailureError(str(cause))
        self.total += 1
        streak = self._streaks.setdefault(number, _Streak(trace))
        streak.count, streak.unrolls = streak.count + 1, 0
        kind = _CHANGING.sub("", trace)
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(f"actor {number} failed and is replaced (at most {self.allowed} times in a row):\n{trace}")
        if streak.count > self.allowed:
            raise ActorFailureError(
                f"actor {number} failed {streak.count} times in a row; {self.allowed} are allowed. "
                f"The first failure:\n{streak.first}"
            )

    def forgive(self, number: int) -> None:
        if streak := self._streaks.get(number):
            streak.unrolls += 1
            if streak.unrolls >= FORGIVEN_AFTER:
                del self._streaks[number]

    def pause(self, number: int) -> float:
        """Seconds to wait before actor `number` is restarted."""
        streak = self._streaks.get(number)
        return min(FIRST_PAUSE * 2 ** (streak.count - 1), LONGEST_PAUSE) if streak else 0.0
