"""Pool of actors in this process."""

import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from ..agents.values import Weights
from .actor import MakeActor, MemberActors
from .member_pool import MemberPool
from .pool import ActorStateError
from .unroll import Unroll
from .vectorized import unroll_groups


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
