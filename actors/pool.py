"""Sources of unrolls: the interface of pools, and the pools of actors in this process.

The learner requests unrolls; actors produce the next ones only while it processes a batch. This bounds memory use, and
it bounds policy lag to `max_lag` updates, for any number of actors and environments.

Over days of training, actors are killed, nodes are lost and environments raise exceptions. Unlike failures caused by a
bug, these do not recur in a replacement, so an actor's failures in a row are forgotten after FORGIVEN_AFTER unrolls.
"""

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..agents.values import Weights
from ..envs.arrays import ContractError
from .actor import MakeActor, MemberActors
from .unroll import Unroll
from .vectorized import unroll_groups

FORGIVEN_AFTER = 50  # Unrolls without a failure after which an actor's failures in a row are forgotten
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # Seconds before a replacement starts; doubled with each failure in a row.
_CHANGING = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")  # Differs between reports of one failure: addresses, ids, times


class ActorStateError(RuntimeError):
    """Raised when the actors' state cannot be saved; training can continue without it."""


class ActorFailureError(RuntimeError):
    """Raised when an actor fails too often or its environment breaks the contract; the message contains the cause."""


class TransportDiedError(RuntimeError):
    """Raised when a Ray process that transports requests and unrolls has died; the message names it."""


class ActorPool(Protocol):
    """Set of actors that return unrolls, shared by all members of a population."""

    device: torch.device  # Of this process, used by actors; the CPU if they are in other processes
    still: AbstractContextManager[object]  # Context in which no actor uses this process's device

    @property
    def num_actors(self) -> int: ...  # Active actors

    @property
    def failures(self) -> int: ...  # Actors that failed and were replaced

    @property
    def progress(self) -> int: ...  # Changes while any environment steps, even within an unroll

    @property
    def gathering(self) -> bool: ...  # Whether a `gather` is in progress, during which the state cannot be saved

    def stored_bytes(self) -> int | None:
        """Measured bytes of unrolls and weights in object stores; None if unavailable."""

    def publish(self, weights: Weights, learned: int = 0) -> None:
        """Set the newest weights of a member, which result from an update on `learned` environments."""

    def retire(self, member: int) -> None:
        """Request no more unrolls of `member`; those in progress still arrive."""

    def next(self) -> Unroll | None:
        """Return the next unroll of any member; members take turns. Returns None if none arrives for a while, so that
        the caller can check signals and the clock."""

    def arrived(self) -> Unroll | None:
        """Return the next unroll of any member if it has already arrived, else None; call `next` first."""
        return None

    def gather(self, member: int = 0) -> list[Unroll] | None:
        """Return one unroll of every actor, in order, all made with the member's newest weights (synchronous mode).
        Returns None if some are missing after a while; the next call, for the same member, keeps those that arrived."""

    def save(self) -> list[Any]:
        """Return the exact state of every actor between two `gather`s. Raises ActorStateError if it is unavailable."""
        ...

    def restore(self, saved: list[Any]) -> None:
        """Continue from a state returned by `save` of a pool of the same size."""

    def close(self) -> None:
        """Stop all actors."""


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
    """Weights, turns and failures of the members' actors, common to the pools below and in remote/."""

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


class LocalPool(MemberPool):
    """Pool that runs all actors in turn in this process: for tests, debugging and bit-exact runs; see ActorPool.

    Args:
        together: whether the networks of all members are evaluated in one call, so that all get unrolls at once.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        together: bool = False,
    ) -> None:
        super().__init__(max_failures, report)
        self._together, self._make_actor = together, make_actor
        self._actors = [MemberActors(make_actor, number, 0) for number in range(num_actors)]
        for actors in self._actors:
            actors.actor(0)  # so that no unroll's time includes importing and compiling
        self.device = self._actors[0].actor(0).device
        self.still = nullcontext()
        self._turn = 0
        self._made: list[Unroll] = []  # Unrolls made together with a requested one
        self._gathered: dict[int, list[Unroll]] = {}  # Unrolls by member, gathered together with another member's

    @property
    def num_actors(self) -> int:
        return len(self._actors)

    @property
    def progress(self) -> int:
        return sum(actors.progress for actors in self._actors)

    @property
    def gathering(self) -> bool:
        return bool(self._gathered)

    def stored_bytes(self) -> int:
        return 0

    def publish(self, weights: Weights, learned: int = 0) -> None:
        if self._set(weights):
            self._made = [unroll for unroll in self._made if unroll.member != weights.member]

    def next(self) -> Unroll | None:
        if not self._made:
            numbers = range(self._turn, self._turn + 1)
            self._turn = numbers.stop % self.num_actors
            members = self._schedule.round() if self._together else [self._schedule.next()]
            self._made = self.unrolls(numbers, [self._weights[m] for m in members if m is not None])
        return self._made.pop(0)

    def gather(self, member: int = 0) -> list[Unroll]:
        if member not in self._gathered:
            members = self._schedule.members if self._together else [member]
            for unroll in self._one_of_each([self._weights[m] for m in members]):
                self._gathered.setdefault(unroll.member, []).append(unroll)
        return self._gathered.pop(member)

    def _one_of_each(self, weights: Sequence[Weights]) -> list[Unroll]:
        """Return one unroll of every actor for each of these members."""
        return self.unrolls(range(self.num_actors), weights)

    def save(self) -> list[Any]:
        try:
            return [actor.save() for actor in self._actors]
        except ValueError as problem:
            raise ActorStateError(str(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        for actor, state in zip(self._actors, saved, strict=True):
            actor.restore(state)

    def close(self) -> None:
        for actor in self._actors:
            actor.close()

    def unrolls(self, numbers: range, weights: Sequence[Weights]) -> list[Unroll]:
        """Return one unroll of each of these actors for each of these members; see vectorized.py for several members or
        a separate device."""
        if len(weights) == 1 and (self.device.type == "cpu" or len(numbers) == 1):
            return [self._unroll(number, weights[0]) for number in numbers]
        return self._in_turn(numbers, weights)

    def _in_turn(self, numbers: range, weights: Sequence[Weights]) -> list[Unroll]:
        groups = {number: [(self._actors[number].actor(w.member), w) for w in weights] for number in numbers}
        unrolls = unroll_groups(groups, self._replace)
        for number in unrolls:
            self._failures.forgive(number)
        for number in [number for number in numbers if number not in unrolls]:
            unrolls[number] = [self._unroll(number, w) for w in weights]
        return [unroll for number in numbers for unroll in unrolls[number]]

    def _replace(self, number: int, problem: BaseException) -> None:
        self._failures.add(number, traceback.format_exc(), problem)
        self._actors[number].close()
        self._actors[number] = MemberActors(self._make_actor, number, self._actors[number].life + 1)

    def _unroll(self, number: int, weights: Weights) -> Unroll:
        while True:
            try:
                unroll = self._actors[number].unroll(weights)
            except (Exception, SystemExit) as problem:
                self._replace(number, problem)
            else:
                self._failures.forgive(number)
                return unroll
