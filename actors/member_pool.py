"""Weights, turns and failures of the members' actors, common to all pools.

Over days of training, actors are killed, nodes are lost and environments raise exceptions. Unlike failures caused by a
bug, these do not recur in a replacement, so an actor's failures in a row are forgotten after FORGIVEN_AFTER unrolls.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..agents.values import Weights
from ..envs.arrays import ContractError
from .pool import ActorFailureError, ActorPool

FORGIVEN_AFTER = 50  # Unrolls without a failure after which an actor's failures in a row are forgotten
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # Seconds before a replacement starts; doubled with each failure in a row.
_CHANGING = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")  # Differs between reports of one failure: addresses, ids, times


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


class MemberSchedule:
    """Schedule of requests that gives all members the same number of unrolls."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    @property
    def members(self) -> list[int]:
        return sorted(self._counts)

    def join(self, member: int) -> None:
        """Add `member`, starting at the others' current count; no effect if it is already scheduled."""
        self._counts.setdefault(member, min(self._counts.values(), default=0))

    def leave(self, member: int) -> None:
        self._counts.pop(member, None)

    def next(self, may: Callable[[int], bool] = lambda _: True, served: Mapping[int, int] | None = None) -> int | None:
        """Return the member of an actor's next request: of those for which `may` is true, the one with the fewest so
        far; ties go to the one that the actor has `served` least, so that it does not always serve the same members."""
        among = [member for member in self._counts if may(member)]
        if not among:
            return None
        member = min(among, key=lambda m: (self._counts[m], (served or {}).get(m, 0), m))
        self._counts[member] += 1
        return member

    def round(self) -> list[int]:
        """Count one request for every member, and return the members."""
        for member in self._counts:
            self._counts[member] += 1
        return self.members

    def give_back(self, member: int) -> None:
        """Reschedule a request of `member` that was lost with its actor."""
        if member in self._counts:
            self._counts[member] -= 1


class MemberPool(ActorPool):
    """Weights, turns and failures of the members' actors, common to all pools."""

    def __init__(self, max_failures: int, report: Callable[[str], None]) -> None:
        self._failures = Failures(max_failures, report)
        self._weights: dict[int, Weights] = {}
        self._schedule = MemberSchedule()

    @property
    def failures(self) -> int:
        return self._failures.total

    def retire(self, member: int) -> None:
        self._schedule.leave(member)

    def _set(self, weights: Weights) -> bool:
        """Set a member's newest weights; return whether they begin new episodes."""
        before = self._weights.get(weights.member, weights)
        self._weights[weights.member] = weights
        self._schedule.join(weights.member)
        return weights.beginnings != before.beginnings
