"""Failures of actors: training survives occasional ones, and a crash loop ends it.

In a run of days, actors are killed, nodes are lost and environments raise exceptions. Unlike a bug, such failures
do not recur in a replacement: an actor's failures are forgotten after FORGIVEN_AFTER unrolls. So transient faults
never add up, and a lost node counts once for each of its actors. An actor that fails immediately
and repeatedly ends the run with the first traceback of the series. So does one whose total failures are IN_ALL times
the allowed number: an environment that fails repeatedly is not replaced forever.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..envs.arrays import ContractError

FORGIVEN_AFTER = 50  # Unrolls after which an actor's failures are forgotten
IN_ALL = 10  # Allowed failures of one actor in total, as a multiple of those in a row
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # Seconds before a replacement starts; doubled with each failure in a row.
_CHANGING = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")
"""Parts that differ between two reports of the same failure: addresses, process ids, times."""


class ActorFailureError(RuntimeError):
    """Raised when an actor failed too often in a row; the message ends with the first failure's traceback."""


class TransportDiedError(RuntimeError):
    """Raised when a Ray process needed to transport requests and unrolls has died; the message names it."""


@dataclass
class _Row:
    """Failures of one actor in a row."""

    first: str  # Traceback of the first failure
    count: int = 0
    unrolls: int = 0  # Unrolls since the last failure


class Failures:
    """Count each actor's failures, in a row and in total.

    Args:
        allowed: failures in a row of one actor that are tolerated.
        report: displays a traceback to the user; called once for each kind of failure.
    """

    def __init__(self, allowed: int, report: Callable[[str], None]) -> None:
        self.allowed, self.total = allowed, 0
        self._report = report
        self._rows: dict[int, _Row] = {}
        self._of_each: Counter[int] = Counter()  # Total failures of each actor
        self._reported: set[str] = set()

    def add(self, number: int, trace: str, cause: object = None) -> None:
        """Record a failure of actor `number`. Raises ActorFailureError if there are too many, or for a ContractError,
        since every replacement would fail too."""
        if isinstance(cause, ContractError):
            raise ActorFailureError(str(cause))
        self.total += 1
        row = self._rows.setdefault(number, _Row(trace))
        row.count, row.unrolls = row.count + 1, 0
        kind = _CHANGING.sub("", trace)
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(f"actor {number} failed and is replaced ({self.allowed} times in a row at most):\n{trace}")
        if row.count > self.allowed:
            raise ActorFailureError(
                f"actor {number} failed {row.count} times in a row, {self.allowed} are allowed. "
                f"The first failure:\n{row.first}"
            )
        self._of_each[number] += 1
        if self._of_each[number] > IN_ALL * self.allowed:
            raise ActorFailureError(
                f"actor {number} failed {self._of_each[number]} times in total, {IN_ALL * self.allowed} are allowed "
                f"({IN_ALL} times those in a row). The last failure:\n{trace}"
            )

    def forgive(self, number: int) -> None:
        """Record an unroll of actor `number`."""
        row = self._rows.get(number)
        if row is not None:
            row.unrolls += 1
            if row.unrolls >= FORGIVEN_AFTER:
                del self._rows[number]

    def pause(self, number: int) -> float:
        """Seconds to wait before actor `number` is restarted."""
        row = self._rows.get(number)
        return min(FIRST_PAUSE * 2 ** (row.count - 1), LONGEST_PAUSE) if row else 0.0
