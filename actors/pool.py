"""Where unrolls come from: the pool's contract, and the pool that lives in this process.

The learner pulls. `publish` makes weights current; every request for an unroll that is sent afterwards carries them.
A pool keeps a bounded number of requests open, so that neither policy lag nor memory can grow.
"""

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..agents.weights import Weights
from .failures import Failures
from .members import MakeActor, MemberActors, Turns
from .unroll import Unroll

MAX_IN_FLIGHT = 2
"""Requests that one actor may have open: one being made while the answer to another is consumed."""


BATCHES_IN_FLIGHT = 2
"""Batches that requests for several unrolls may come to: one is made while the learner is busy with the other."""
MOST_AT_ONCE = 8
"""Unrolls per request that are enough to share its cost."""
NARROW = 4
"""Environments per actor up to which moving an unroll costs far less than asking for it."""


class Asking(NamedTuple):
    """How actors are asked."""

    requests: int
    """Open per actor, at most MAX_IN_FLIGHT."""
    unrolls: int
    """Per request, one after the other with the same weights."""


ONE_AT_A_TIME = Asking(MAX_IN_FLIGHT, 1)


def asking(batch_size: int, num_actors: int, num_envs: int) -> Asking:
    """How to ask so many actors, of so many environments each, for batches of so many columns.

    A request costs the learner half a millisecond, whatever is asked for. Few narrow actors are asked for several
    unrolls at once, as long as all that is under way makes no more than BATCHES_IN_FLIGHT. Many are asked for two once
    instead of for one twice: that is no more under way, and an actor that waits for its turn is not missed.
    """
    fits = BATCHES_IN_FLIGHT * batch_size // (MAX_IN_FLIGHT * num_actors * num_envs)
    if num_envs > NARROW:
        return ONE_AT_A_TIME
    return Asking(MAX_IN_FLIGHT, min(MOST_AT_ONCE, fits)) if fits > 1 else Asking(1, MAX_IN_FLIGHT)


class ActorStateError(RuntimeError):
    """The actors' state cannot be saved; training can go on without."""


class ActorPool(Protocol):
    """A set of actors that answer with unrolls, shared by all members of a population."""

    @property
    def num_actors(self) -> int:
        """Actors at work now."""
        ...

    @property
    def failures(self) -> int:
        """Actors that have failed and were replaced since the pool was made."""
        ...

    def publish(self, weights: Weights) -> None:
        """Make these the newest weights of their member, which takes its turns from now on."""
        ...

    def retire(self, member: int) -> None:
        """Ask for no more unrolls of `member`; those under way still come."""
        ...

    def next(self) -> Unroll | None:
        """The first unroll that is ready, of whichever member; members take turns in being asked for.

        None if there was none for a while: time to look at signals and the clock.
        """
        ...

    def gather(self, member: int = 0) -> list[Unroll] | None:
        """One unroll of every actor, in order, all made with the member's newest weights (synchronous mode).

        None if they did not all come for a while; the next call, for the same member, goes on with those that did.
        """
        ...

    def save(self) -> list[Any]:
        """The exact state of every actor between two `gather`s. Raises ActorStateError if it cannot be had."""
        ...

    def restore(self, saved: list[Any]) -> None:
        """Continue from a state made by `save` of a pool of the same size."""
        ...

    def close(self) -> None:
        """Stop all actors."""
        ...


class LocalPool:
    """All actors in this process, one after another: for tests, debugging and bit-exact runs."""

    def __init__(
        self, make_actor: MakeActor, num_actors: int, max_failures: int, report: Callable[[str], None] = print
    ) -> None:
        self.num_actors = num_actors
        self._make_actor = make_actor
        self._actors = [MemberActors(make_actor, number, 0) for number in range(num_actors)]
        for actors in self._actors:
            actors.prepare()
        self._failures = Failures(max_failures, report)
        self._weights: dict[int, Weights] = {}
        self._turns = Turns()
        self._turn = 0

    @property
    def failures(self) -> int:
        """See ActorPool."""
        return self._failures.total

    def publish(self, weights: Weights) -> None:
        """See ActorPool."""
        self._weights[weights.member] = weights
        self._turns.join(weights.member)

    def retire(self, member: int) -> None:
        """See ActorPool."""
        self._turns.leave(member)

    def next(self) -> Unroll:
        """See ActorPool; actors take turns too."""
        number = self._turn
        self._turn = (number + 1) % self.num_actors
        return self._unroll(number, self._turns.next())

    def gather(self, member: int = 0) -> list[Unroll]:
        """See ActorPool."""
        return [self._unroll(number, member) for number in range(self.num_actors)]

    def save(self) -> list[Any]:
        """See ActorPool."""
        try:
            return [actor.save() for actor in self._actors]
        except ValueError as problem:
            raise ActorStateError(str(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        """See ActorPool."""
        if len(saved) != self.num_actors:
            raise ValueError(f"state of {len(saved)} actors for a pool of {self.num_actors}")
        for actor, state in zip(self._actors, saved, strict=True):
            actor.restore(state)

    def close(self) -> None:
        """See ActorPool."""
        self._actors = []

    def _unroll(self, number: int, member: int) -> Unroll:
        while True:
            actors = self._actors[number]
            try:
                unroll = actors.unroll(self._weights[member])
            except Exception:
                self._failures.add(number, traceback.format_exc())
                self._actors[number] = MemberActors(self._make_actor, number, actors.life + 1)
            else:
                self._failures.forgive(number)
                return unroll
