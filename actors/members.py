"""Actors for every member of a population, and the schedule that assigns the next unrolls to members.

Any process can act for any member, so a population needs no more processes than a single learner does.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..agents.values import Weights
from .actor import Actor
from .unroll import Unroll, join

_log = logging.getLogger(__name__)

MakeActor = Callable[[int, int, int], Actor]  # (number, member, life) -> Actor


class WeightsVersion(NamedTuple):
    """Reference to weights sent earlier, since fetching weights takes longer than the rest of a request."""

    member: int
    version: int


class MemberActors:
    """Actors of slot `number`: one per member served, each with separate environments and recurrent state. `life`
    counts the earlier actors of the slot."""

    def __init__(self, make_actor: MakeActor, number: int, life: int) -> None:
        self._make_actor, self.number, self.life = make_actor, number, life
        self._actors: dict[int, Actor] = {}
        self.progress = 0  # Counter that increases while the environments step, also within an unroll

    def actor(self, member: int) -> Actor:
        if member not in self._actors:
            self._actors[member] = self._make_actor(self.number, member, self.life)
            self._actors[member].call_at_steps(self._note_step)
        return self._actors[member]

    def _note_step(self) -> None:
        self.progress += 1

    def unroll(self, weights: Weights) -> Unroll:
        return self.actor(weights.member).unroll(weights)

    def unrolls(self, weights: Weights | WeightsVersion, count: int) -> Unroll:
        """Return the next `count` unrolls of the weights' member, joined along the batch axis."""
        actor, sent = self.actor(weights.member), weights if isinstance(weights, Weights) else None
        if sent is None and weights.version != actor.version:
            raise RuntimeError(f"version {weights.version} of member {weights.member}'s weights was lost in transfer")
        return join([actor.unroll(sent), *(actor.unroll() for _ in range(count - 1))])

    def save(self) -> dict[int, Any]:
        return {member: actor.save() for member, actor in self._actors.items()}

    def restore(self, saved: dict[int, Any]) -> None:
        for member, state in saved.items():
            self.actor(member).restore(state)

    def close(self) -> None:
        """Close the environments of all members; exceptions become warnings."""
        while self._actors:
            try:
                self._actors.popitem()[1].close()
            except Exception as problem:
                _log.warning("actor %d: close() of an environment raised %r", self.number, problem)


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
