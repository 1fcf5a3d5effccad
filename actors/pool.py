"""Where unrolls come from: the pool's contract, and the pool that lives in this process.

The learner pulls. `publish` makes weights current; every request for an unroll that is sent afterwards carries them.
A pool keeps a bounded number of requests open, so that neither policy lag nor memory can grow.
"""

import traceback
from collections.abc import Callable
from typing import Any, Protocol

from ..agents.weights import Weights
from .actor import Actor
from .unroll import Unroll

MAX_IN_FLIGHT = 2
"""Unrolls that one actor may have requested or waiting: one being made while another is consumed."""

MakeActor = Callable[[int, int, int], Actor]
"""(number, member, life) -> Actor."""


class ActorFailureError(RuntimeError):
    """Actors failed more often than allowed; the message ends with the first failure's traceback."""


class ActorPool(Protocol):
    """A set of actors that answer with unrolls."""

    num_actors: int

    def publish(self, weights: Weights) -> None:
        """Make these the newest weights of their member."""
        ...

    def next(self) -> Unroll:
        """The first unroll that is ready (asynchronous mode)."""
        ...

    def gather(self) -> list[Unroll]:
        """One unroll of every actor, in order, all made with the newest weights (synchronous mode)."""
        ...

    def save(self) -> list[Any]:
        """The exact state of every actor; only between `gather` calls."""
        ...

    def restore(self, saved: list[Any]) -> None:
        """Continue from a state made by `save` of a pool of the same size."""
        ...

    def close(self) -> None:
        """Stop all actors."""
        ...


class Failures:
    """Counts actors' failures, keeps the first traceback, and says when it is enough."""

    def __init__(self, allowed: int, report: Callable[[str], None]) -> None:
        self.allowed, self.count, self.first = allowed, 0, ""
        self._report = report

    def add(self, number: int, trace: str) -> None:
        """Note a failure of actor `number`. Raises ActorFailureError once more than `allowed` happened."""
        self.count += 1
        if not self.first:
            self.first = trace
            self._report(f"actor {number} failed and is replaced ({self.allowed} replacements allowed):\n{trace}")
        if self.count > self.allowed:
            raise ActorFailureError(
                f"actors failed {self.count} times, {self.allowed} replacements were allowed. "
                f"The first failure:\n{self.first}"
            )


class LocalPool:
    """All actors in this process, one after another: for tests, debugging and bit-exact runs."""

    def __init__(
        self, make_actor: MakeActor, num_actors: int, max_failures: int, report: Callable[[str], None] = print
    ) -> None:
        self.num_actors = num_actors
        self._make_actor = make_actor
        self._actors = [make_actor(number, 0, 0) for number in range(num_actors)]
        self._lives = [0] * num_actors
        self._failures = Failures(max_failures, report)
        self._weights: Weights | None = None
        self._turn = 0

    def publish(self, weights: Weights) -> None:
        """See ActorPool."""
        self._weights = weights

    def next(self) -> Unroll:
        """See ActorPool; actors take turns."""
        number = self._turn
        self._turn = (number + 1) % self.num_actors
        return self._unroll(number)

    def gather(self) -> list[Unroll]:
        """See ActorPool."""
        return [self._unroll(number) for number in range(self.num_actors)]

    def save(self) -> list[Any]:
        """See ActorPool."""
        return [actor.save() for actor in self._actors]

    def restore(self, saved: list[Any]) -> None:
        """See ActorPool."""
        if len(saved) != self.num_actors:
            raise ValueError(f"state of {len(saved)} actors for a pool of {self.num_actors}")
        for actor, state in zip(self._actors, saved, strict=True):
            actor.restore(state)

    def close(self) -> None:
        """See ActorPool."""
        self._actors = []

    def _unroll(self, number: int) -> Unroll:
        while True:
            try:
                return self._actors[number].unroll(self._weights)
            except Exception:
                self._failures.add(number, traceback.format_exc())
                self._lives[number] += 1
                self._actors[number] = self._make_actor(number, 0, self._lives[number])
