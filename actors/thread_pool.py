"""The pool whose actors are a thread of the learner's process, which acts while the learner learns.

Environments and networks let go of the interpreter while they compute, so a thread is enough; unrolls are handed on as
they are, without a copy through another process, and on a GPU without leaving it.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..agents.threads import become_helper
from ..agents.values import Weights
from .members import MakeActor
from .packed import record_event, stream_module, take_over
from .pool import InProcess, LocalPool
from .unroll import Unroll, tensors

WAIT_SECONDS = 1.0
"""For which `next` waits for an unroll."""


class _Asked(NamedTuple):
    """Unrolls that the thread shall make: of every one of these actors one for each of these members."""

    numbers: range
    weights: Sequence[Weights]


class _Made(NamedTuple):
    """Unrolls, and the event after which the learner's stream may read what is on the device."""

    unrolls: list[Unroll]
    event: Any


class ThreadPool(InProcess):
    """All actors in one thread of this process. Methods: ActorPool.

    Args:
        make_actor: makes an actor.
        num_actors: so many batches of environments, which take turns.
        max_failures: failures in a row of one actor that are made good.
        report: shows a failure to a person.
        num_envs: environments per actor.
        ahead: environments of a member that may be asked for and not learned from, which bounds policy lag as
            actors/remote/window.py says: at least those of an actor.
        together: members that may be asked for at once are, and their networks are asked in one call.
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
        super().__init__(together)
        self.num_actors = num_actors
        self._actors = LocalPool(make_actor, num_actors, max_failures, report)
        self.device, self.still = self._actors.device, threading.Lock()
        self._streams = stream_module(self.device)
        self._num_envs, self._ahead = num_envs, max(ahead, num_envs)
        self._unlearned: Counter[int] = Counter()
        """Environments asked for and not learned from, by member."""
        self._turns: Counter[int] = Counter()
        """The actor that each member's next request begins with."""
        self._streaming = self._over = False
        self._ready: list[Unroll] = []
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Made | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._act, name="actors", daemon=True)
        self._thread.start()

    @property
    def failures(self) -> int:
        return self._actors.failures

    @property
    def progress(self) -> int:
        return self._actors.progress

    def publish(self, weights: Weights, learned: int = 0) -> None:
        before = self._weights.get(weights.member, weights)
        self._weights[weights.member] = weights
        self._schedule.join(weights.member)
        self._unlearned[weights.member] = max(0, self._unlearned[weights.member] - learned)
        if weights.beginnings != before.beginnings:  # what was asked for before will not be learned from
            del self._unlearned[weights.member]
        if self._streaming:
            self._ask()

    def next(self) -> Unroll | None:
        self._streaming = True
        self._ask()
        if not self._ready:
            try:
                self._ready = self._answer(WAIT_SECONDS)
            except queue.Empty:
                return None
        return self._ready.pop(0)

    def _one_of_each(self, weights: Sequence[Weights]) -> list[Unroll]:
        self._asked.put(_Asked(range(self.num_actors), weights))
        return self._answer(None)

    def save(self) -> list[Any]:
        saved = self._actors.save()
        self._wait()
        return saved

    def restore(self, saved: list[Any]) -> None:
        self._actors.restore(saved)
        self._wait()

    def _wait(self) -> None:
        """Wait for what this thread has started: the actors' stream uses the same memory next."""
        if (event := record_event(self.device)) is not None:
            event.synchronize()

    def close(self) -> None:
        self._over = True  # requests that have not begun are dropped
        self._asked.put(None)
        self._thread.join()
        self._actors.close()

    def _ask(self) -> None:
        """Ask for what may be made now: of as many actors at once as the bound has room for."""
        while asked := self._round():
            for numbers, weights in asked.items():
                self._asked.put(_Asked(numbers, weights))

    def _round(self) -> dict[range, list[Weights]]:
        """At most one request per member, of all that have room if they act together, else of one: by actors."""
        asked: dict[range, list[Weights]] = {}
        served: set[int] = set()
        while (self._together or not served) and (
            member := self._schedule.next(lambda each: each not in served and self._room(each) > 0)
        ) is not None:
            first = self._turns[member]
            numbers = range(first, min(first + self._room(member), self.num_actors))
            self._turns[member] = numbers.stop % self.num_actors
            self._unlearned[member] += len(numbers) * self._num_envs
            asked.setdefault(numbers, []).append(self._weights[member])
            served.add(member)
        return asked

    def _room(self, member: int) -> int:
        """Actors that a member may still be served by."""
        return (self._ahead - self._unlearned[member]) // self._num_envs

    def _answer(self, seconds: float | None) -> list[Unroll]:
        answer = self._answers.get(timeout=seconds)
        if isinstance(answer, BaseException):
            raise answer
        for unroll in answer.unrolls:
            take_over(tensors(unroll), answer.event, self.device)
        return answer.unrolls

    def _act(self) -> None:
        become_helper()
        # The device starts an actor's few operations ahead of those of an update that is under way.
        streams = self._streams
        with streams.stream(streams.Stream(self.device, priority=-1)) if streams else nullcontext():
            while (asked := self._asked.get()) is not None and not self._over:
                try:
                    with self.still:
                        unrolls = self._actors.unrolls(asked.numbers, asked.weights)
                    self._answers.put(_Made(unrolls, record_event(self.device)))
                except BaseException as problem:
                    self._answers.put(problem)
                    return
