"""The pool of actors in Ray processes, on this machine or on a cluster.

Ray transfers unrolls and weights, never single steps. A request contains its member's newest weights, which are put
into the object store once per version, or only their version if the process already has them; older versions are not
stored. The window determines the number of open requests and the order of unrolls.

Every actor has a slot. Its process is starting, active, or lost; a lost process is replaced after a pause that grows
with successive failures. A lost response is not requested again: no update has used it, and none will.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar, Unpack

import ray
import torch
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayError

from ...agents.values import Weights
from ..failures import Failures, TransportDiedError
from ..members import MakeActor, MemberSchedule, WeightsVersion
from ..pool import ActorStateError
from ..unroll import Stored, Unroll
from .slot import ActorSlot, ActorSlots, Request, RequestWindow, SlotOptions
from .wire import dead_part, fetch, message_of, share_tensors, stored_bytes, unpack

PATIENCE = 2.0  # Seconds without an unroll after which the pool returns None to the learner
# An actor is skipped if responses of others have waited for it for this time plus SLOWER times an unroll's duration
PASS_OVER_SECONDS, SLOWER = 2.0, 4.0

T = TypeVar("T")


class RayPool:
    """Pool of actors in Ray processes. Methods without a docstring are those of ActorPool.

    Args:
        make_actor: picklable function that creates an Actor.
        num_actors: number of processes; None: as many as the cluster has room for, now and later.
        max_failures: failures in a row that are tolerated for each actor.
        report: called with the traceback of each new kind of failure.
        window: flow control of the requests of `next`.
        options: see SlotOptions.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int | None,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        window: RequestWindow,
        **options: Unpack[SlotOptions],
    ) -> None:
        share_tensors()
        self._report = report
        self._unrolls_from: Counter[str] = Counter()  # Received unrolls by machine
        self._failures = Failures(max_failures, report)
        self._window = window
        self.device, self.still = torch.device("cpu"), nullcontext()
        self._open: dict[ObjectRef[Any], Request] = {}  # Open requests, oldest first
        self._sent = 0
        self._answers = 0  # Unrolls received
        self._streaming = False  # Whether `next`, not `gather`, was called last; if so, new weights trigger requests
        self._unroll_seconds = 0.0  # Exponential moving average (factor 1/2) of the duration of unrolls
        self._blocked: tuple[ActorSlot, float] | None = None  # Slot that blocks the responses of others, and since when
        self._passed_over: set[int] = set()
        self._gathered: dict[int, Unroll] = {}
        self._weights: dict[int, Weights] = {}
        self._stored: dict[int, ObjectRef[Any]] = {}  # Each member's newest weights, once a request has contained them
        self._schedule = MemberSchedule()
        self._apart: frozenset[int] = frozenset()  # Members whose unrolls stay in Ray's store for another learner
        self._slots = ActorSlots(make_actor, num_actors, self._failures, **options)

    # -- the interface (see ActorPool) -------------------------------------------------------------------------------

    @property
    def num_actors(self) -> int:
        """Number of active actors; a pool of fixed size includes those being replaced."""
        return sum(slot.at_work for slot in self._slots) if self._slots.elastic else len(self._slots)

    @property
    def failures(self) -> int:
        return self._failures.total

    @property
    def progress(self) -> int:
        return self._answers + self._slots.beats

    @property
    def gathering(self) -> bool:
        return not self._streaming and bool(self._gathered or self._open)

    def stored_bytes(self) -> int | None:
        return stored_bytes()

    def deal(self, homes: Mapping[int, str], apart: Iterable[int]) -> None:
        """Prefer actors on the machine of each member's learner (`homes`); leave unrolls of `apart` in Ray's store."""
        self._schedule.homes, self._apart = dict(homes), frozenset(apart)

    def publish(self, weights: Weights, learned: int = 0) -> None:
        before = self._weights.get(weights.member, weights)
        self._weights[weights.member] = weights
        self._stored.pop(weights.member, None)
        self._schedule.join(weights.member)
        self._window.learned(weights.member, learned)
        if weights.beginnings != before.beginnings:
            self._window.forget(weights.member)
        if self._streaming:
            self._request_stream()

    def retire(self, member: int) -> None:
        self._schedule.leave(member)

    def next(self) -> Unroll | None:
        self._streaming = True
        unroll = self._receive(self._request_stream, self._next_in_order)
        self._request_stream()  # before the learner processes this one
        return unroll

    def arrived(self) -> Unroll | None:
        if (unroll := self._next_in_order()) is None and self._open:
            self._poll(0.0)
            unroll = self._next_in_order()
        return unroll

    def gather(self, member: int = 0) -> list[Unroll] | None:
        self._streaming = False

        def request() -> None:  # of every active slot without an open request whose unroll is missing
            for slot in self._slots:
                if slot.at_work and not slot.requests and slot.number not in self._gathered:
                    self._request(slot, member, 1)

        return self._receive(request, self._all_gathered)

    def save(self) -> list[Any]:
        if self._open or self._gathered:
            raise ActorStateError("unrolls are in progress")
        for slot in self._slots:
            if slot.handle is None:
                raise ActorStateError(f"actor {slot.number} has failed and is not replaced yet")
        if died := dead_part():
            raise ActorStateError(f"{died} died")
        try:
            return ray.get([slot.handle.save.remote() for slot in self._slots], timeout=self._slots.timeout)
        except RayError as problem:
            raise ActorStateError(message_of(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        for slot in self._slots:
            slot.versions.clear()  # loading weights also checks them against the state
        ray.get([slot.handle.restore.remote(state) for slot, state in zip(self._slots, saved, strict=True)])

    def close(self) -> None:
        self._slots.close()
        self._open = {}
        if len(self._unrolls_from) > 1:
            counts = ", ".join(f"{machine} ({count:,})" for machine, count in sorted(self._unrolls_from.items()))
            self._report(f"unrolls came from {counts}")

    # -- requests ----------------------------------------------------------------------------------------------------

    def _request_stream(self) -> None:
        """Send all requests that the window allows, to slots with the fewest open ones, then least recently used."""
        for depth in range(self._window.requests_per_slot):
            slots = [slot for slot in self._slots if slot.at_work and len(slot.requests) == depth]
            for slot in sorted(slots, key=lambda slot: slot.last_request):
                machine, idle = slot.place.machine if slot.place else "", not slot.requests
                member = self._schedule.next_at(machine, self._window.has_room, idle, slot.served)
                if member is not None:
                    self._window.sent(self._request(slot, member, self._window.unrolls))
                elif not self._schedule.homes:
                    return

    def _request(self, slot: ActorSlot, member: int, unrolls: int) -> Request:
        version = self._weights[member].version
        weights = WeightsVersion(member, version)
        if slot.versions.get(member) != version:
            if member not in self._stored:
                self._check_ray()
                self._stored[member] = ray.put(self._weights[member])
            weights, slot.versions[member] = self._stored[member], version
        if not slot.requests:
            slot.since = time.monotonic()
        if self._streaming and member in self._apart:
            refs = slot.handle.answer.options(num_returns=2).remote(weights, unrolls, True)
        else:
            refs = slot.handle.answer.remote(weights, unrolls), None
        request = Request(slot, member, unrolls, self._sent, *refs)
        slot.last_request, self._sent = self._sent, self._sent + 1
        slot.served[member] += 1
        slot.requests.append(request)
        self._open[request.ref] = request
        return request

    # -- responses ---------------------------------------------------------------------------------------------------

    def _receive(self, send: Callable[[], None], find: Callable[[], T | None]) -> T | None:
        """Send requests and return the first result of `find` among the responses; None after PATIENCE seconds."""
        patience = time.monotonic() + PATIENCE
        while True:
            for slot, why in self._slots.silent(self._awaited()):  # even while a backlog of responses is processed
                self._lose(slot, why)
            if (result := find()) is not None or time.monotonic() >= patience:
                return result
            self._check_ray()
            self._slots.fill()
            send()
            self._poll(PATIENCE / 4)

    def _check_ray(self) -> None:
        if died := dead_part():  # without this error, a call to Ray's store would end this process
            raise TransportDiedError(f"{died} died")

    def _all_gathered(self) -> list[Unroll] | None:
        if len(self._gathered) < len(self._slots):
            return None
        unrolls, self._gathered = [self._gathered[slot.number] for slot in self._slots], {}
        return unrolls

    def _next_in_order(self) -> Unroll | None:
        request = self._window.next()
        if request is None:
            self._pass_over_the_slowest()
            return None
        self._blocked = None
        return request.answer

    def _pass_over_the_slowest(self) -> None:
        """Skip an actor that delays the learner although others have responded."""
        slot, now = self._window.blocking(), time.monotonic()
        if slot is None or not self._streaming:
            self._blocked = None
        elif self._blocked is None or self._blocked[0] is not slot:
            self._blocked = (slot, now)
        elif now - self._blocked[1] > PASS_OVER_SECONDS + SLOWER * self._unroll_seconds:
            for request in slot.requests:
                self._leave_out(request)
            self._blocked = None
            if slot.number not in self._passed_over:
                self._passed_over.add(slot.number)
                self._report(
                    f"actor {slot.number} is slower than the others: its late unrolls are skipped; "
                    "a larger --max-lag accepts older unrolls"
                )

    def _poll(self, wait: float) -> None:
        """Wait for a response, and process all that have arrived: one poll for each would be slow with many actors."""
        refs = self._awaited()
        if not refs:
            time.sleep(0.05)  # every slot is in its pause after a failure
            return
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=wait)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        for ref, result in zip(ready, fetch(ready, PATIENCE, self._slots.timeout), strict=True):
            self._take(refs[ref], ref, result)

    def _awaited(self) -> "dict[ObjectRef[Any], ActorSlot]":
        """Next expected response of each slot: its ready notification, or the response to its oldest request."""
        starting = {slot.starting: slot for slot in self._slots if slot.starting is not None}
        return starting | {slot.requests[0].ref: slot for slot in self._slots if slot.requests}

    def _take(self, slot: ActorSlot, ref: "ObjectRef[Any]", result: Any) -> None:
        """Process the response of `slot` to `ref`: an unroll, the ready notification, or an error."""
        if isinstance(result, ObjectLostError) and ref in self._open:
            self._drop(self._open[ref])
            slot.versions.clear()  # the lost object may have been the weights
            self._failures.add(slot.number, message_of(result))  # if the process is dead, the next response fails
        elif isinstance(result, RayError):
            self._lose(slot, message_of(result), getattr(result, "cause", None))
        elif ref == slot.starting:
            slot.starting, slot.place, slot.since = None, result, time.monotonic()
        else:
            request = self._open.pop(ref)
            self._answers += 1
            slot.requests.popleft()
            slot.since, slot.stepped = time.monotonic(), True
            unroll: Unroll = unpack(result)
            if request.parcel is not None:
                unroll = unroll._replace(stored=(Stored(request.parcel, 0, len(unroll.weights_version)),))
            request.answer = unroll
            if not self._streaming:
                self._gathered[slot.number] = unroll
            self._unroll_seconds += (unroll.seconds - self._unroll_seconds) / 2
            if self._failures.total:
                self._failures.forgive(slot.number)
            assert slot.place is not None, "the location arrives before the first unroll"
            self._unrolls_from[slot.place.machine] += request.unrolls

    def _lose(self, slot: ActorSlot, why: str, cause: object = None) -> None:
        """Drop the open requests of a slot, and end its process."""
        for request in list(slot.requests):
            self._drop(request)
        self._slots.lose(slot, why, cause)

    def _drop(self, request: Request) -> None:
        """Drop a request that gets no response."""
        del self._open[request.ref]
        request.slot.requests.remove(request)
        self._leave_out(request)

    def _leave_out(self, request: Request) -> None:
        """Use no unroll of a request; its member gets a new request before the other members do."""
        self._window.lost(request)
        self._schedule.give_back(request.member)
