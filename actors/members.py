"""Actors for every member of a population, and the schedule of members for the next unrolls.

Any process can act for any member, so a population needs no more processes than a single learner.
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
    """Reference to weights sent earlier; fetching them takes longer than the rest of a request."""

    member: int
    version: int


class MemberActors:
    """Actors of one slot: one per member served, each with separate environments and recurrent state.

    Args:
        make_actor: creates an actor when it is first needed.
        number: index of the slot.
        life: number of earlier lives of the slot.
    """

    def __init__(self, make_actor: MakeActor, number: int, life: int) -> None:
        self._make_actor, self.number, self.life = make_actor, number, life
        self._actors: dict[int, Actor] = {}
        self._versions: dict[int, int] = {}  # Version of the latest weights of each member passed to `unrolls`
        self.progress = 0  # Counter that increases while the environments step, also within an unroll

    def unroll(self, weights: Weights) -> Unroll:
        """Return one unroll of the weights' member."""
        return self.actor(weights.member).unroll(weights)

    def unrolls(self, weights: Weights | WeightsVersion, count: int) -> Unroll:
        """Return the next `count` unrolls of the weights' member, joined along the batch axis."""
        if isinstance(weights, Weights):
            first = self.unroll(weights)
            self._versions[weights.member] = weights.version
        elif self._versions.get(weights.member) == weights.version:
            first = self.actor(weights.member).unroll()
        else:
            raise RuntimeError(f"version {weights.version} of member {weights.member}'s weights was lost in transfer")
        return join([first, *(self.actor(weights.member).unroll() for _ in range(count - 1))])

    def save(self) -> dict[int, Any]:
        """Exact state of every member's environments and actors."""
        return {member: actor.save() for member, actor in self._actors.items()}

    def restore(self, saved: dict[int, Any]) -> None:
        """Continue from a state returned by `save`."""
        for member, state in saved.items():
            self.actor(member).restore(state)

    def close(self) -> None:
        """Close the environments of all members; exceptions become warnings."""
        actors, self._actors = self._actors, {}
        for actor in actors.values():
            try:
                actor.close()
            except Exception as problem:
                _log.warning("actor %d: close() of an environment raised %r", self.number, problem)

    def actor(self, member: int) -> Actor:
        """Return the actor of a member, created when it is first needed."""
        if member not in self._actors:
            self._actors[member] = self._make_actor(self.number, member, self.life)
            self._actors[member].call_at_steps(self._note_step)
        return self._actors[member]

    def _note_step(self) -> None:
        self.progress += 1


class MemberSchedule:
    """Schedule of requests that gives all members the same number of unrolls."""

    def __init__(self) -> None:
        self._dealt: dict[int, int] = {}
        self.homes: dict[int, str] = {}
        """Machine of each member's learner, if that matters."""

    def join(self, member: int) -> None:
        """Add `member`, starting at the others' current count; no effect if it is already scheduled."""
        self._dealt.setdefault(member, min(self._dealt.values(), default=0))

    def leave(self, member: int) -> None:
        """Remove `member`."""
        self._dealt.pop(member, None)

    def next(self, may: Callable[[int], bool] = lambda _: True, served: Mapping[int, int] | None = None) -> int | None:
        """Return the member of the next request: the one with the fewest so far among those that `may` get one, then
        the one with the fewest in `served`, the counts of one actor, whose environments would otherwise always serve
        the same members."""
        among = [member for member in self._dealt if may(member)]
        if not among:
            return None
        member = min(among, key=lambda each: (self._dealt[each], (served or {}).get(each, 0), each))
        self._dealt[member] += 1
        return member

    def next_at(
        self, machine: str, may: Callable[[int], bool], idle: bool, served: Mapping[int, int] | None = None
    ) -> int | None:
        """Return the member of an actor's next request: one with a learner on its machine, if there are any.

        An idle actor also acts for other members, and an actor on a machine without learners acts for all.
        """
        if machine in self.homes.values():
            member = self.next(lambda each: self.homes.get(each) == machine and may(each), served)
            if member is not None or not idle:
                return member
        return self.next(may, served)

    @property
    def members(self) -> list[int]:
        """Scheduled members."""
        return sorted(self._dealt)

    def round(self) -> list[int]:
        """Count one request for each of them."""
        for member in self._dealt:
            self._dealt[member] += 1
        return self.members

    def turn(self) -> list[int]:
        """Count one request for the next member; no effect without members."""
        member = self.next()
        return [] if member is None else [member]

    def give_back(self, member: int) -> None:
        """Reschedule a request of `member` that was lost with its actor."""
        if member in self._dealt:
            self._dealt[member] -= 1
