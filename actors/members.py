"""An actor for every member of a population, and which member the next unroll is made for.

Any process can act for any member, so a population needs no more processes than a single learner.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ..agents.values import Weights
from .actor import Actor
from .unroll import Unroll, join

_log = logging.getLogger(__name__)

MakeActor = Callable[[int, int, int], Actor]
"""(number, member, life) -> Actor."""


class WeightsVersion(NamedTuple):
    """Names weights that were sent before: fetching them takes longer than all else in a request."""

    member: int
    version: int


class MemberActors:
    """One place's actors: one per member that it has served, each with environments and memory of its own.

    Args:
        make_actor: makes them, when they are first needed.
        number: of the place among all.
        life: how many held the place before.
    """

    def __init__(self, make_actor: MakeActor, number: int, life: int) -> None:
        self._make_actor, self.number, self.life = make_actor, number, life
        self._actors: dict[int, Actor] = {}
        self._versions: dict[int, int] = {}
        """Of the weights that `unrolls` was given last, per member."""
        self.progress = 0
        """Increases while the environments step, also within an unroll."""

    def prepare(self) -> None:
        """Make the first actor: importing and compiling its environment is no part of any unroll's time."""
        self.actor(0)

    def unroll(self, weights: Weights) -> Unroll:
        """One unroll of the weights' member."""
        return self.actor(weights.member).unroll(weights)

    def unrolls(self, weights: Weights | WeightsVersion, count: int) -> Unroll:
        """The next `count` unrolls of the weights' member, side by side as one."""
        if isinstance(weights, Weights):
            first = self.unroll(weights)
            self._versions[weights.member] = weights.version
        elif self._versions.get(weights.member) == weights.version:
            first = self.actor(weights.member).unroll()
        else:
            raise RuntimeError(f"version {weights.version} of member {weights.member}'s weights was lost on its way")
        return join([first, *(self.actor(weights.member).unroll() for _ in range(count - 1))])

    def save(self) -> dict[int, Any]:
        """The exact state of every member's environments and memory."""
        return {member: actor.save() for member, actor in self._actors.items()}

    def restore(self, saved: dict[int, Any]) -> None:
        """Continue from a state made by `save`."""
        for member, state in saved.items():
            self.actor(member).restore(state)

    def close(self) -> None:
        """Close the environments of all members; an exception that one raises is a warning."""
        actors, self._actors = self._actors, {}
        for actor in actors.values():
            try:
                actor.close()
            except Exception as problem:
                _log.warning("actor %d: close() of an environment raised %r", self.number, problem)

    def actor(self, member: int) -> Actor:
        """The actor of a member, made when it is first needed."""
        if member not in self._actors:
            self._actors[member] = self._make_actor(self.number, member, self.life)
            self._actors[member].call_at_steps(self._note_step)
        return self._actors[member]

    def _note_step(self) -> None:
        self.progress += 1


class MemberSchedule:
    """Deals requests to members so that all get the same number of unrolls."""

    def __init__(self) -> None:
        self._dealt: dict[int, int] = {}

    def join(self, member: int) -> None:
        """Deal to `member` too, from where the others are now; nothing if it takes part already."""
        self._dealt.setdefault(member, min(self._dealt.values(), default=0))

    def leave(self, member: int) -> None:
        """Deal no more to `member`."""
        self._dealt.pop(member, None)

    def next(self, may: Callable[[int], bool] = lambda _: True) -> int | None:
        """The member that the next request is for: of those that `may` be asked, the one with the fewest so far."""
        among = [member for member in self._dealt if may(member)]
        if not among:
            return None
        member = min(among, key=lambda each: (self._dealt[each], each))
        self._dealt[member] += 1
        return member

    @property
    def members(self) -> list[int]:
        """Those that take part."""
        return sorted(self._dealt)

    def round(self) -> list[int]:
        """One request for each of them, at once."""
        for member in self._dealt:
            self._dealt[member] += 1
        return self.members

    def turn(self) -> list[int]:
        """One request, for the member that is next; none if nobody takes part."""
        member = self.next()
        return [] if member is None else [member]

    def give_back(self, member: int) -> None:
        """A request of `member` was lost with its actor: it is dealt again."""
        if member in self._dealt:
            self._dealt[member] -= 1
