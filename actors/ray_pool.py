"""The pool of actors in Ray processes, on this machine or on a cluster.

Ray carries unrolls and weights, never single steps. At most MAX_IN_FLIGHT requests are open per actor; a new one is
sent only when an answer has been taken, with the newest weights, which are put into the object store once a version
and fetched from there once by each process.

Every actor has a seat. Its process is starting, at work, or lost; a lost one is replaced after a pause that grows while
failures follow each other. An answer that was lost is not made up for: nobody has learnt from it and nobody will.
"""

import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from ..agents.process import prepare_process
from ..agents.weights import Weights
from .failures import Failures
from .members import Known, MakeActor, MemberActors, Turns
from .parcel import Parcel, pack, unpack
from .pool import ONE_AT_A_TIME, ActorStateError, Asking
from .reaper import Reaper, Whereabouts, whereabouts
from .seats import Request, Seat, Wish
from .unroll import Unroll

PATIENCE = 2.0
"""Seconds without any unroll after which the learner is told so."""
LOOK_SECONDS = 1.0
"""How often the pool looks for processes that have been silent for too long."""
START_TIMEOUT = 600.0
"""Seconds in which a process must have started: a node may have to be booted for it."""


def share_tensors() -> None:
    """Let Ray move tensors as numpy arrays: out-of-band buffers, read without a copy."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    ray.util.register_serializer(torch.Tensor, serializer=lambda x: x.detach().numpy(), deserializer=torch.from_numpy)


class ActorProcess(MemberActors):
    """What runs in an actor's process."""

    def __init__(self, make_actor: MakeActor, number: int, life: int, threads: int, niceness: int) -> None:
        os.nice(niceness)
        prepare_process(threads)
        share_tensors()
        super().__init__(make_actor, number, life)

    def ready(self) -> Whereabouts:
        """Make the first actor: importing and compiling its world is no part of any unroll's time.

        Returns where this process is.
        """
        self.prepare()
        return whereabouts(ray.util.get_node_ip_address())

    def answer(self, weights: Weights | Known, count: int) -> Parcel | bytes:
        """See MemberActors.unrolls."""
        return pack(self.unrolls(weights, count))


class RayPool:
    """Actors in Ray processes.

    Args:
        make_actor: picklable function that makes an Actor.
        num_actors: how many processes; None: as many as the cluster has room for, now and later.
        max_failures: failures in a row of one actor that are made good.
        report: where the traceback of a new kind of failure goes.
        cpus_per_actor: Ray resources that one actor claims.
        threads: torch threads per actor.
        niceness: how far actors step back when the learner wants their core (0..19).
        timeout: seconds without an answer after which an actor at work is replaced.
        asking: how many requests `next` keeps open per actor, and for how many unrolls each; they come as one.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int | None,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        cpus_per_actor: float = 1.0,
        threads: int = 1,
        niceness: int = 0,
        timeout: float = 120.0,
        asking: Asking = ONE_AT_A_TIME,
    ) -> None:
        share_tensors()
        self._elastic = num_actors is None
        self._make_ref = ray.put(make_actor)
        self._options = (threads, niceness)
        self._timeout = timeout
        self._remote = ray.remote(num_cpus=cpus_per_actor, max_restarts=0, scheduling_strategy="SPREAD")(ActorProcess)
        self._report = report
        self._unrolls_from: Counter[str] = Counter()
        """Unrolls taken, by machine."""
        self._failures = Failures(max_failures, report)
        self._open: dict[ObjectRef[Any], Request] = {}
        """Requests, oldest first."""
        self._answered: deque[tuple[ObjectRef[Any], Seat, Any]] = deque()
        """Answers that are here, or why they are lost, to be taken before anybody looks for more."""
        self._gathered: dict[int, Unroll] = {}
        self._weights: dict[int, Weights] = {}
        self._stored: dict[int, ObjectRef[Any]] = {}
        """The newest weights of a member in the object store, once a request has carried them."""
        self._turns = Turns()
        self._stream = Wish(lambda seat: asking.requests, self._turns.next, asking.unrolls)
        self._reaper = Reaper(ray.util.get_node_ip_address())
        self._look_at = 0.0
        if num_actors is None:
            num_actors = max(1, int(ray.available_resources().get("CPU", 0) / max(cpus_per_actor, 0.01)))
        self._seats = [Seat(number) for number in range(num_actors)]
        for seat in self._seats:
            self._start(seat)

    @property
    def num_actors(self) -> int:
        """See ActorPool; a fixed number counts those that are being replaced."""
        return sum(seat.at_work for seat in self._seats) if self._elastic else len(self._seats)

    @property
    def failures(self) -> int:
        """See ActorPool."""
        return self._failures.total

    def publish(self, weights: Weights) -> None:
        """See ActorPool; the weights are stored when the next request is sent, once."""
        self._weights[weights.member] = weights
        self._stored.pop(weights.member, None)
        self._turns.join(weights.member)

    def retire(self, member: int) -> None:
        """See ActorPool."""
        self._turns.leave(member)

    def next(self) -> Unroll | None:
        """See ActorPool."""
        unroll = self._receive(self._stream)
        self._ask(self._stream)  # before the learner is busy with this one
        return unroll

    def gather(self, member: int = 0) -> list[Unroll] | None:
        """See ActorPool."""
        wish = Wish(lambda seat: int(seat.number not in self._gathered), lambda: member, 1)
        while len(self._gathered) < len(self._seats):
            unroll = self._receive(wish)
            if unroll is None:
                return None
            self._gathered[unroll.actor] = unroll
        unrolls = [self._gathered[seat.number] for seat in self._seats]
        self._gathered = {}
        return unrolls

    def save(self) -> list[Any]:
        """See ActorPool."""
        if self._open or self._gathered:
            raise ActorStateError("unrolls are under way")
        try:
            return ray.get([seat.handle.save.remote() for seat in self._seats], timeout=self._timeout)
        except RayError as problem:
            raise ActorStateError(_said(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        """See ActorPool."""
        if len(saved) != len(self._seats):
            raise ValueError(f"state of {len(saved)} actors for a pool of {len(self._seats)}")
        for seat in self._seats:
            seat.told.clear()  # loading weights also compares them with the state
        ray.get([seat.handle.restore.remote(state) for seat, state in zip(self._seats, saved, strict=True)])

    def open_requests(self) -> list[int]:
        """The actors' numbers, once for each request that is open now."""
        return [request.seat.number for request in self._open.values()]

    def close(self) -> None:
        """See ActorPool."""
        for seat in self._seats:
            if seat.handle is not None:
                ray.kill(seat.handle)
        self._seats, self._open = [], {}
        self._answered.clear()
        if len(self._unrolls_from) > 1:
            self._report(
                f"unrolls came from {', '.join(f'{m} ({n:,})' for m, n in sorted(self._unrolls_from.items()))}"
            )

    def _receive(self, wish: Wish) -> Unroll | None:
        """The next answer, asking for what is wished. None if there was no answer for PATIENCE seconds."""
        patience = time.monotonic() + PATIENCE
        while True:
            while self._answered:
                ref, seat, answer = self._answered.popleft()
                if ref in self._open or ref == seat.starting:  # its seat has not been lost since
                    unroll = self._take(seat, ref, answer)
                    if unroll is not None:
                        return unroll
            if time.monotonic() > patience:
                return None
            self._fill_seats()
            self._ask(wish)
            self._replace_silent()
            self._look_for_answers()

    def _look_for_answers(self) -> None:
        """Wait a while for an answer, and note all that are here then: a look takes the longer the more actors."""
        refs = self._awaited()
        if not refs:
            time.sleep(0.05)  # every seat is in its pause
            return
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=PATIENCE / 4)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        self._answered.extend((ref, refs[ref], answer) for ref, answer in zip(ready, self._fetch(ready), strict=True))

    def _fetch(self, refs: "list[ObjectRef[Any]]") -> list[Any]:
        """What each of `refs` holds; of those that are lost, the RayError."""
        try:
            return ray.get(refs, timeout=PATIENCE)
        except RayError:  # any of them; one by one it shows whose it is
            return [self._fetch_one(ref) for ref in refs]

    def _fetch_one(self, ref: "ObjectRef[Any]") -> Any:
        try:
            return ray.get(ref, timeout=self._timeout)
        except RayError as problem:
            return problem

    def _awaited(self) -> "dict[ObjectRef[Any], Seat]":
        """What each seat is to answer next, oldest first: the second request comes after the first, even if here."""
        first: dict[Seat, ObjectRef[Any]] = {seat: seat.starting for seat in self._seats if seat.starting is not None}
        for ref, request in self._open.items():
            first.setdefault(request.seat, ref)
        return {ref: seat for seat, ref in first.items()}

    def _take(self, seat: Seat, ref: "ObjectRef[Any]", answer: Any) -> Unroll | None:
        """The answer of `seat` to `ref`, or None if it is no unroll: the process is ready, or something is lost."""
        if isinstance(answer, ObjectLostError):
            self._drop(ref)
            seat.told.clear()  # it may have been the weights that were lost
            self._failures.add(seat.number, _said(answer))  # the actor itself may live; if not, the next answer tells
            return None
        if isinstance(answer, RayError):
            self._lose(seat, _said(answer))
            return None
        request = self._close(ref)
        seat.since = time.monotonic()
        if request is None:
            seat.starting, seat.process = None, answer
            return None
        self._failures.forgive(seat.number)
        assert seat.process is not None, "it said where it is before its first request"
        self._unrolls_from[seat.process.machine] += request.unrolls
        return unpack(answer)

    def _ask(self, wish: Wish) -> None:
        """Send requests to the seats at work that have too few open."""
        missing = [seat for seat in self._seats if seat.requests < wish.requests(seat) and seat.at_work]
        while missing:
            for seat in missing:
                self._request(seat, wish.member(), wish.unrolls)
            missing = [seat for seat in missing if seat.requests < wish.requests(seat)]

    def _request(self, seat: Seat, member: int, unrolls: int) -> None:
        if member not in self._stored:
            self._stored[member] = ray.put(self._weights[member])
        stored = self._stored[member]
        has_them = seat.told.get(member) is stored
        seat.told[member] = stored
        if not seat.requests:
            seat.since = time.monotonic()
        seat.requests += 1
        weights = Known(member, self._weights[member].version) if has_them else stored
        self._open[seat.handle.answer.remote(weights, unrolls)] = Request(seat, member, unrolls)

    def _fill_seats(self) -> None:
        """Start a process for each empty seat whose pause is over.

        An elastic pool always has one process starting, which Ray places once there is room: an empty seat's, or a new
        one's. So it finds room that appears, and a cluster that can grow sees that more is wanted.
        """
        if self._elastic and not any(seat.starting is not None for seat in self._seats):
            empty = [seat for seat in self._seats if seat.handle is None]
            if not empty:
                empty = [Seat(len(self._seats))]
                self._seats += empty
            if empty[0].since <= time.monotonic():
                self._start(empty[0])
        elif not self._elastic:
            for seat in self._seats:
                if seat.handle is None and seat.since <= time.monotonic():
                    self._start(seat)

    def _start(self, seat: Seat) -> None:
        seat.life += 1
        seat.told = {}
        seat.handle = self._remote.remote(self._make_ref, seat.number, seat.life, *self._options)
        seat.starting, seat.since = seat.handle.ready.remote(), time.monotonic()

    def _replace_silent(self) -> None:
        """Give up on processes that have not answered, or not started, for too long."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._reaper.reap()
        for ref, seat in self._awaited().items():
            if seat.starting is None:
                limit, what = self._timeout, "answered"
            else:
                limit, what = float("inf") if self._elastic else START_TIMEOUT, "started"
            if now - seat.since > limit and not ray.wait([ref], timeout=0)[0]:
                self._lose(seat, f"actor {seat.number} has not {what} for {limit:.0f} s")

    def _lose(self, seat: Seat, why: str) -> None:
        """The end of a seat's process: its open requests go down with it."""
        ray.kill(seat.handle)
        if seat.process is not None:
            self._reaper.expect(seat.process)
        seat.handle = seat.starting = seat.process = None
        for ref in [ref for ref, request in self._open.items() if request.seat is seat]:
            self._drop(ref)
        self._failures.add(seat.number, why)
        seat.since = time.monotonic() + self._failures.pause(seat.number)

    def _drop(self, ref: "ObjectRef[Any]") -> None:
        """An answer that will not come: its member is asked for another one before the others have their turn."""
        request = self._close(ref)
        if request is not None:
            self._turns.give_back(request.member)

    def _close(self, ref: "ObjectRef[Any]") -> Request | None:
        """The request that `ref` answers, if it is one, is open no more."""
        request = self._open.pop(ref, None)
        if request is not None:
            request.seat.requests -= 1
        return request


def _said(problem: RayError) -> str:
    """What an exception of Ray's says, with the traceback in the other process if there is one."""
    return str(problem.cause) if isinstance(problem, RayTaskError) and not str(problem) else str(problem)
