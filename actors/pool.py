"""Sources of unrolls: the interface of pools, and the pools of actors in this process.

The learner requests unrolls; actors produce the next ones only while it processes a batch. This bounds memory use, and
it bounds policy lag to `max_lag` updates, for any number of actors and environments.
"""

import queue
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from ..agents.threads import become_helper
from ..agents.values import Weights
from .failures import Failures
from .members import MakeActor, MemberActors, MemberSchedule
from .packed import record_event, stream_module, take_over
from .unroll import Unroll, tensors
from .vectorized import unroll_groups

WAIT_SECONDS = 1.0  # Seconds for which `ThreadPool.next` waits for an unroll
Made = tuple[list[Unroll], Any]  # Unrolls, and the event after which the learner's stream may read their tensors


class ActorStateError(RuntimeError):
    """Raised when the actors' state cannot be saved; training can continue without it."""


class ActorPool(Protocol):
    """Set of actors that return unrolls, shared by all members of a population."""

    @property
    def num_actors(self) -> int: ...  # Active actors

    @property
    def failures(self) -> int: ...  # Actors that failed and were replaced

    @property
    def progress(self) -> int: ...  # Changes while any environment steps, even within an unroll

    @property
    def gathering(self) -> bool: ...  # Whether a `gather` is in progress, during which the state cannot be saved

    @property
    def device(self) -> torch.device: ...  # Of this process, used by actors; the CPU if they are in other processes

    @property
    def still(self) -> AbstractContextManager[object]: ...  # Context in which no actor uses this process's device

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


class MemberPool:
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
        self.num_actors, self._together, self._make_actor = num_actors, together, make_actor
        self._actors = [MemberActors(make_actor, number, 0) for number in range(num_actors)]
        for actors in self._actors:
            actors.actor(0)  # so that no unroll's time includes importing and compiling
        self.device = self._actors[0].actor(0).device
        self.still: AbstractContextManager[object] = nullcontext()
        self._turn = 0
        self._made: list[Unroll] = []  # Unrolls made together with a requested one
        self._gathered: dict[int, list[Unroll]] = {}  # Unrolls by member, gathered together with another member's

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

    def arrived(self) -> None:
        return None

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


class ThreadPool(LocalPool):
    """Pool of all actors in one thread of this process, concurrently with learning: environments and networks release
    the GIL. Unrolls are not copied and stay on the GPU.

    Args:
        num_envs: environments per actor.
        ahead: limit on a member's environments requested and not yet learned from (at least those of one actor).
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        num_envs: int,
        ahead: int,
        together: bool = False,
    ) -> None:
        super().__init__(make_actor, num_actors, max_failures, report, together=together)
        self.still = threading.Lock()
        self._num_envs, self._ahead = num_envs, max(ahead, num_envs)
        self._unlearned: Counter[int] = Counter()  # Environments requested and not yet learned from, by member
        self._turns: Counter[int] = Counter()  # First actor of each member's next request
        self._streaming = False
        self._streams = stream_module(self.device)
        # High priority: an actor's few operations start before those of an update in progress.
        self._stream: Any = self._streams.Stream(self.device, priority=-1) if self._streams else None
        self._thread = ThreadPoolExecutor(1, "actors", become_helper)
        self._results: queue.SimpleQueue[Future[Made]] = queue.SimpleQueue()

    def publish(self, weights: Weights, learned: int = 0) -> None:
        begins = self._set(weights)
        self._unlearned[weights.member] = max(0, self._unlearned[weights.member] - learned)
        if begins:  # unrolls requested earlier are not learned from
            del self._unlearned[weights.member]
        if self._streaming:
            self._request_all()

    def next(self) -> Unroll | None:
        self._streaming = True
        self._request_all()
        if not self._made:
            try:
                self._made = self._take(WAIT_SECONDS)
            except queue.Empty:
                return None
        return self._made.pop(0)

    def _one_of_each(self, weights: Sequence[Weights]) -> list[Unroll]:
        self._request(range(self.num_actors), weights)
        return self._take(None)

    def save(self) -> list[Any]:
        saved = super().save()
        self._wait()
        return saved

    def restore(self, saved: list[Any]) -> None:
        super().restore(saved)
        self._wait()

    def _wait(self) -> None:
        """Wait for work that this thread has started, since the actors' stream uses the same memory next."""
        if (event := record_event(self.device)) is not None:
            event.synchronize()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        super().close()

    def _request_all(self) -> None:
        """Request all unrolls that the bound allows, of as many actors at once as possible."""
        while requests := self._round():
            for numbers, weights in requests.items():
                self._request(numbers, weights)

    def _round(self) -> dict[range, list[Weights]]:
        """Select at most one request per member: for all members with room if they act together, else for one."""
        requests: dict[range, list[Weights]] = {}
        served: set[int] = set()
        while (self._together or not served) and (
            member := self._schedule.next(lambda m: m not in served and self._room(m) > 0)
        ) is not None:
            first = self._turns[member]
            numbers = range(first, min(first + self._room(member), self.num_actors))
            self._turns[member] = numbers.stop % self.num_actors
            self._unlearned[member] += len(numbers) * self._num_envs
            requests.setdefault(numbers, []).append(self._weights[member])
            served.add(member)
        return requests

    def _room(self, member: int) -> int:
        """Number of actors that another request for a member may use."""
        return (self._ahead - self._unlearned[member]) // self._num_envs

    def _request(self, numbers: range, weights: Sequence[Weights]) -> None:
        self._thread.submit(self._make, numbers, weights).add_done_callback(self._results.put)

    def _take(self, seconds: float | None) -> list[Unroll]:
        unrolls, event = self._results.get(timeout=seconds).result()
        for unroll in unrolls:
            take_over(tensors(unroll), event, self.device)
        return unrolls

    def _make(self, numbers: range, weights: Sequence[Weights]) -> Made:
        with self.still, self._streams.stream(self._stream) if self._streams else nullcontext():
            return self.unrolls(numbers, weights), record_event(self.device)
