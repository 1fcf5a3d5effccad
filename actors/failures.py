"""When an actor's failures are a mishap that training survives, and when they are a crash loop that should end it.

In a run of days an actor is killed now and then, a node is lost, an environment raises. What tells this from a bug is
whether replacements work: an actor that has made FORGIVEN_AFTER unrolls since it failed has its failures forgotten. So
faults that come and go never add up, a lost node of many actors counts once for each, and an actor that fails at once,
and again, and again ends the run with the first traceback of that row. So does one that fails IN_ALL times as often in
all: an environment that never lasts long is not replaced for ever.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..envs.arrays import ContractError

FORGIVEN_AFTER = 50
"""Unrolls after which an actor's failures are forgotten."""
IN_ALL = 10
"""Failures of one actor in all, as a multiple of those in a row."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a replacement starts; they double with each failure in a row."""
_CHANGING = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")
"""Parts that differ between two reports of the same failure: addresses, numbers of processes, times."""


class ActorFailureError(RuntimeError):
    """An actor failed more often in a row than allowed; the message ends with the first failure's traceback."""


class TransportDiedError(RuntimeError):
    """Raised when nothing carries requests and unrolls any more: a process of Ray's is dead, named in the message."""


@dataclass
class _Row:
    """One actor's failures in a row."""

    first: str
    """Traceback of the first."""
    count: int = 0
    unrolls: int = 0
    """Unrolls since the last one."""


class Failures:
    """Counts each actor's failures, in a row and in all.

    Args:
        allowed: failures in a row of one actor that are made good.
        report: shows a traceback to a person; each kind of failure once.
    """

    def __init__(self, allowed: int, report: Callable[[str], None]) -> None:
        self.allowed, self.total = allowed, 0
        self._report = report
        self._rows: dict[int, _Row] = {}
        self._of_each: Counter[int] = Counter()
        """Failures of each actor in all."""
        self._reported: set[str] = set()

    def add(self, number: int, trace: str, cause: object = None) -> None:
        """Note a failure of actor `number`.

        Raises ActorFailureError if it is one too many, or if every replacement would fail alike: a ContractError.
        """
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
                f"actor {number} failed {self._of_each[number]} times in all, {IN_ALL * self.allowed} are allowed "
                f"({IN_ALL} times those in a row). The last failure:\n{trace}"
            )

    def forgive(self, number: int) -> None:
        """Note an unroll of actor `number`."""
        row = self._rows.get(number)
        if row is not None:
            row.unrolls += 1
            if row.unrolls >= FORGIVEN_AFTER:
                del self._rows[number]

    def pause(self, number: int) -> float:
        """Seconds to wait before actor `number` is started again."""
        row = self._rows.get(number)
        return min(FIRST_PAUSE * 2 ** (row.count - 1), LONGEST_PAUSE) if row else 0.0
