"""Where unrolls come from: the pool's contract, and the pool that lives in this process.

The learner pulls. `publish` makes weights current; every request for an unroll that is sent afterwards carries them.
The next unrolls are made while the learner is busy with a batch and no earlier: the weights that act are at most
`max_lag` updates old when they are learnt from, and memory is bounded, whatever the number of actors and environments.
"""

import math
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from ..agents.values import Weights
from .failures import Failures
from .members import MakeActor, MemberActors, MemberSchedule
from .unroll import Unroll


def least_max_lag(batch_size: int, num_envs: int) -> int:
    """The smallest bound on policy lag that can be kept with actors of so many environments.

    An unroll is learnt from in as many updates as it holds batches, and begins in the middle of one where the sizes do
    not divide each other.
    """
    return -(-(num_envs - math.gcd(num_envs, batch_size)) // batch_size)


def usual_max_lag(batch_size: int, num_envs: int) -> int:
    """The smallest bound with which unrolls are made while the learner is busy."""
    return -(-num_envs // batch_size)


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

    @property
    def gathering(self) -> bool:
        """Whether a `gather` has begun and not ended: the actors' state cannot be saved then."""
        ...

    def stored_bytes(self) -> int | None:
        """Bytes that unrolls and weights take in object stores now, as measured; None where that cannot be had."""
        ...

    def publish(self, weights: Weights, learnt: int = 0) -> None:
        """Make these the newest weights of their member, which unrolls are made for from now on.

        They come out of an update that has learnt from `learnt` environments.
        """
        ...

    def retire(self, member: int) -> None:
        """Ask for no more unrolls of `member`; those under way still come."""
        ...

    def next(self) -> Unroll | None:
        """The next unroll, of whichever member; members take turns in being asked for.

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


class InProcess:
    """A pool whose actors are in this process: nothing is stored elsewhere, and no gathering is left half done."""

    @property
    def gathering(self) -> bool:
        return False

    def stored_bytes(self) -> int:
        return 0


class LocalPool(InProcess):
    """All actors in this process, one after another: for tests, debugging and bit-exact runs. Methods: ActorPool."""

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
        self._schedule = MemberSchedule()
        self._turn = 0

    @property
    def failures(self) -> int:
        return self._failures.total

    def publish(self, weights: Weights, learnt: int = 0) -> None:
        self._weights[weights.member] = weights
        self._schedule.join(weights.member)

    def retire(self, member: int) -> None:
        self._schedule.leave(member)

    def next(self) -> Unroll:
        """The next unroll; actors take turns too."""
        number = self._turn
        self._turn = (number + 1) % self.num_actors
        member = self._schedule.next()
        assert member is not None, "publish() comes before the first request"
        return self.unrolls(range(number, number + 1), self._weights[member])[0]

    def gather(self, member: int = 0) -> list[Unroll]:
        return self.unrolls(range(self.num_actors), self._weights[member])

    def save(self) -> list[Any]:
        try:
            return [actor.save() for actor in self._actors]
        except ValueError as problem:
            raise ActorStateError(str(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        if len(saved) != self.num_actors:
            raise ValueError(f"state of {len(saved)} actors for a pool of {self.num_actors}")
        for actor, state in zip(self._actors, saved, strict=True):
            actor.restore(state)

    def close(self) -> None:
        self._actors = []

    def unrolls(self, numbers: range, weights: Weights) -> list[Unroll]:
        """One unroll of each of these actors with these weights. On a device of their own they take turns at every
        step, so that the worlds of one are stepped while the device works for another."""
        if all(self._actors[number].waits(weights.member) for number in numbers) and len(numbers) > 1:
            return self._in_turns(numbers, weights)
        return [self._unroll(number, weights) for number in numbers]

    def _in_turns(self, numbers: range, weights: Weights) -> list[Unroll]:
        under_way = {number: self._actors[number].unrolling(weights) for number in numbers}
        done: dict[int, Unroll] = {}
        while under_way:
            for number, steps in list(under_way.items()):
                try:
                    next(steps)
                except StopIteration as end:
                    done[number] = end.value
                    self._failures.forgive(number)
                    del under_way[number]
                except Exception:
                    self._replace(number)
                    del under_way[number]
        return [done[number] if number in done else self._unroll(number, weights) for number in numbers]

    def _replace(self, number: int) -> None:
        self._failures.add(number, traceback.format_exc())
        self._actors[number] = MemberActors(self._make_actor, number, self._actors[number].life + 1)

    def _unroll(self, number: int, weights: Weights) -> Unroll:
        while True:
            try:
                unroll = self._actors[number].unroll(weights)
            except Exception:
                self._replace(number)
            else:
                self._failures.forgive(number)
                return unroll
