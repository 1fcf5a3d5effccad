"""The pool of actors in Ray processes, on this machine or on a cluster.

A request contains its member's newest weights, which are put into the object store once per version, or only their
version if the process already has them. A lost response is not requested again: no update has used it, and none will.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...agents.values import Weights
from ..actor import MakeActor, WeightsVersion
from ..member_pool import MemberPool
from ..pool import ActorStateError, TransportDiedError
from ..unroll import Stored, Unroll
from .slot import (
    ActorProcess,
    ActorSlot,
    Request,
    RequestWindow,
    StuckProcesses,
    dead_part,
    fetch,
    share_tensors,
    unpack,
)

PATIENCE = 2.0  # Seconds without an unroll after which the pool returns None to the learner
LONGEST_INTERVAL = 5.0  # Longest interval between two heartbeats in seconds
LOOK_SECONDS = 1.0  # Seconds between checks for processes that do not respond
CLOSE_SECONDS = 3.0  # Seconds for actors to close their environments at the end, before their processes are killed
START_TIMEOUT = 600.0  # Seconds within which a process must start, which may require booting a node
FIRST_STEP_TIMEOUT = 120.0  # Smallest timeout of a new process's first step, which loads and compiles networks
# An actor is skipped if responses of others have waited for it for this time plus SLOWER times an unroll's duration
PASS_OVER_SECONDS, SLOWER = 2.0, 4.0

T = TypeVar("T")


class RayPool(MemberPool):
    """Pool of actors in Ray processes. Methods without a docstring are those of ActorPool.

    Args:
        make_actor: picklable function that creates an Actor.
        num_actors: number of processes; None: as many as the cluster has room for, now and later.
        max_failures: failures in a row that are tolerated for each actor.
        window: flow control of the requests of `next`.
        cpus_per_actor, gpus_per_actor: Ray resources that one actor reserves.
        timeout: seconds without a response or an environment step after which an active actor is replaced.
        niceness: scheduling niceness of actors (0..19), so that the learner has priority on their cores.
        first: index of the first actor, after those of the run's other pools.
        near: whether to prefer this process's machine as long as it has room.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int | None,
        max_failures: int,
        report: Callable[[str], None] = print,
        *,
        window: RequestWindow,
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        timeout: float = 120.0,
        niceness: int = 0,
        first: int = 0,
        near: bool = False,
    ) -> None:
        super().__init__(max_failures, report)
        share_tensors()
        self._report, self._window = report, window
        self.device, self.still = torch.device("cpu"), nullcontext()
        self._open: dict[ObjectRef[Any], Request] = {}  # Open requests, oldest first
        self._sent = self._received = 0  # Requests; unrolls and heartbeats
        self._streaming = False  # Whether `next`, not `gather`, was called last; if so, new weights trigger requests
        self._unroll_seconds = 0.0  # Exponential moving average (factor 1/2) of the duration of unrolls
        self._blocked: tuple[ActorSlot, float] | None = None  # Slot that blocks the responses of others, and since when
        self._passed_over: set[int] = set()
        self._gathered: dict[int, Unroll] = {}
        self._stored: dict[int, ObjectRef[Any]] = {}  # Each member's newest weights, once a request has contained them
        self.apart: frozenset[int] = frozenset()  # Members whose unrolls stay in Ray's store for another learner
        self._elastic, self._timeout, self._niceness = num_actors is None, timeout, niceness
        self._interval = min(LONGEST_INTERVAL, timeout / 8)  # Seconds between two heartbeats
        self._stuck, self._look_at = StuckProcesses(ray.util.get_node_ip_address()), 0.0
        claims: dict[str, Any] = {"num_cpus": cpus_per_actor, "num_gpus": gpus_per_actor}
        here = ray.get_runtime_context().get_node_id()
        place: Any = NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=True) if near else "SPREAD"
        self._remote = ray.remote(**claims, max_restarts=0, scheduling_strategy=place)(ActorProcess)
        self._make_ref = ray.put(make_actor)
        if num_actors is None:
            free = ray.available_resources()
            claimed = {"CPU": max(cpus_per_actor, 0.01), "GPU": gpus_per_actor}
            num_actors = max(1, int(min(free.get(kind, 0) / part for kind, part in claimed.items() if part)))
        self._slots = [ActorSlot(first + number) for number in range(num_actors)]
        for slot in self._slots:
            self._start(slot)

    @property
    def num_actors(self) -> int:
        # A pool of fixed size includes those being replaced.
        return sum(slot.at_work for slot in self._slots) if self._elastic else len(self._slots)

    @property
    def progress(self) -> int:
        return self._received

    @property
    def gathering(self) -> bool:
        return not self._streaming and bool(self._gathered or self._open)

    def stored_bytes(self) -> int | None:
        try:
            from ray._private import state
            from ray._private.internal_api import get_memory_info_reply

            # Use this connection's address: automatic discovery may return that of another Ray cluster that has ended.
            return int(get_memory_info_reply(state.state, timeout_seconds=1.0).store_stats.object_store_bytes_used)
        except Exception:  # if a later Ray changes this private function, training continues without this metric
            return None

    def publish(self, weights: Weights, learned: int = 0) -> None:
        begins = self._set(weights)
        self._stored.pop(weights.member, None)
        self._window.learned(weights.member, learned)
        if begins:
            self._window.forget(weights.member)
        if self._streaming:
            self._request_stream()

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

        def request() -> None:
            for slot in self._slots:
                if slot.at_work and not slot.requests and slot.number not in self._gathered:
                    self._request(slot, member, 1)

        if not self._receive(request, lambda: len(self._gathered) >= len(self._slots) or None):
            return None
        unrolls, self._gathered = [self._gathered[slot.number] for slot in self._slots], {}
        return unrolls

    def save(self) -> list[Any]:
        if self._open or self._gathered or dead_part() or any(slot.handle is None for slot in self._slots):
            raise ActorStateError("unrolls are in progress, or an actor has failed and is not replaced yet")
        try:
            return ray.get([slot.handle.save.remote() for slot in self._slots], timeout=self._timeout)
        except RayError as problem:
            raise ActorStateError(message_of(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        for slot in self._slots:
            slot.versions.clear()  # loading weights also checks them against the state
        ray.get([slot.handle.restore.remote(state) for slot, state in zip(self._slots, saved, strict=True)])

    def close(self) -> None:
        slots = [slot for slot in self._slots if slot.handle is not None]
        self._slots, self._open = [], {}
        if closing := [slot.handle.close.remote() for slot in slots if slot.at_work]:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for slot in slots:
            ray.kill(slot.handle)

    def _request_stream(self) -> None:
        """Send all requests that the window allows, to slots with the fewest open ones, then least recently used."""
        for depth in range(self._window.requests_per_slot):
            slots = [slot for slot in self._slots if slot.at_work and len(slot.requests) == depth]
            for slot in sorted(slots, key=lambda slot: slot.last_request):
                member = self._schedule.next(self._window.has_room, slot.served)
                if member is None:
                    return
                self._window.sent(self._request(slot, member, self._window.unrolls))

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
        if self._streaming and member in self.apart:
            refs = slot.handle.answer.options(num_returns=2).remote(weights, unrolls, True)
        else:
            refs = slot.handle.answer.remote(weights, unrolls), None
        request = Request(slot, member, self._sent, *refs)
        slot.last_request, self._sent = self._sent, self._sent + 1
        slot.served[member] += 1
        slot.requests.append(request)
        self._open[request.ref] = request
        return request

    def _receive(self, send: Callable[[], None], find: Callable[[], T | None]) -> T | None:
        """Send requests and return the first result of `find` among the responses; None after PATIENCE seconds."""
        patience = time.monotonic() + PATIENCE
        while True:
            self._lose_silent()  # even while a backlog of responses is processed
            if (result := find()) is not None or time.monotonic() >= patience:
                return result
            self._check_ray()
            self._fill()
            send()
            self._poll(PATIENCE / 4)

    def _check_ray(self) -> None:
        if died := dead_part():  # without this error, a call to Ray's store would end this process
            raise TransportDiedError(f"{died} died")

    def _next_in_order(self) -> Unroll | None:
        """Return the next unroll; while it is missing, None. Skip an actor that delays the learner although others have
        responded."""
        if request := self._window.next():
            self._blocked = None
            return request.answer
        slot, now = self._window.blocking(), time.monotonic()
        if slot is None:
            self._blocked = None
        elif self._blocked is None or self._blocked[0] is not slot:
            self._blocked = (slot, now)
        elif now - self._blocked[1] > PASS_OVER_SECONDS + SLOWER * self._unroll_seconds:
            for request in slot.requests:
                self._leave_out(request)
            self._blocked = None
            if slot.number not in self._passed_over:
                self._passed_over.add(slot.number)
                text = f"actor {slot.number} is slower than the others: its late unrolls are skipped"
                self._report(f"{text}; a larger --max-lag accepts older unrolls")
        return None

    def _poll(self, wait: float) -> None:
        """Wait for a response, and process all that have arrived: one poll for each would be slow with many actors."""
        refs = self._awaited()
        if not refs:
            time.sleep(0.05)  # every slot is in its pause after a failure
            return
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=wait)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        for ref, result in zip(ready, fetch(ready, PATIENCE, self._timeout), strict=True):
            self._take(refs[ref], ref, result)

    def _awaited(self) -> "dict[ObjectRef[Any], ActorSlot]":
        """Next expected response of each slot: its ready notification, or the response to its oldest request."""
        starting = {slot.starting: slot for slot in self._slots if slot.starting is not None}
        return starting | {slot.requests[0].ref: slot for slot in self._slots if slot.requests}

    def _take(self, slot: ActorSlot, ref: "ObjectRef[Any]", result: Any) -> None:
        if isinstance(result, RayError):
            self._lose(slot, message_of(result), getattr(result, "cause", None))
        elif ref == slot.starting:
            slot.starting, slot.place, slot.since = None, result, time.monotonic()
        else:
            request = self._open.pop(ref)
            self._received += 1
            slot.requests.popleft()
            slot.since, slot.stepped = time.monotonic(), True
            unroll: Unroll = unpack(result)
            if request.parcel is not None:
                unroll = unroll._replace(stored=(Stored(request.parcel, 0, len(unroll.weights_version)),))
            request.answer = unroll
            if not self._streaming:
                self._gathered[slot.number] = unroll
            self._unroll_seconds += (unroll.seconds - self._unroll_seconds) / 2
            self._failures.forgive(slot.number)

    def _lose(self, slot: ActorSlot, why: str, cause: object = None) -> None:
        """Drop a slot's open requests and kill its process; a new one starts after a pause. Raises ActorFailureError
        after too many failures."""
        while slot.requests:
            request = slot.requests.popleft()
            del self._open[request.ref]
            self._leave_out(request)
        ray.kill(slot.handle)
        if slot.place is not None:
            self._stuck.note(slot.place)
        slot.handle = slot.starting = slot.place = slot.beat = None
        self._failures.add(slot.number, why, cause)
        slot.since = time.monotonic() + self._failures.pause(slot.number)

    def _leave_out(self, request: Request) -> None:
        """Use no unroll of a request; its member gets a new request before the other members do."""
        self._window.lost(request)
        self._schedule.give_back(request.member)

    def _lose_silent(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._stuck.end_overdue()
        for ref, slot in self._awaited().items():
            overdue = slot.starting is None and now - slot.since > 3 * self._interval
            if overdue and (beat := slot.last_beat()) != slot.beat:
                slot.beat, slot.since, slot.stepped = beat, now, True
                self._received += 1
            limit = self._timeout if slot.stepped else max(self._timeout, FIRST_STEP_TIMEOUT)
            if slot.starting is not None:
                limit = float("inf") if self._elastic else START_TIMEOUT
            if now - slot.since > limit and not ray.wait([ref], timeout=0)[0]:
                self._lose(slot, f"actor {slot.number} has not responded or stepped its environments for {limit:.0f} s")

    def _fill(self) -> None:
        """Start a process for each empty slot whose pause has ended. An elastic pool always has one starting process,
        which Ray places once there is room: so new resources are used, and an autoscaling cluster detects demand."""
        if self._elastic and any(slot.starting is not None for slot in self._slots):
            return
        if self._elastic and all(slot.handle is not None for slot in self._slots):
            self._slots.append(ActorSlot(len(self._slots)))
        ready = [slot for slot in self._slots if slot.handle is None and slot.since <= time.monotonic()]
        for slot in ready[:1] if self._elastic else ready:
            self._start(slot)

    def _start(self, slot: ActorSlot) -> None:
        slot.life += 1
        slot.versions, slot.stepped = {}, False
        place = self._make_ref, slot.number, slot.life, os.getcwd()
        slot.handle = self._remote.remote(*place, self._niceness, self._interval)
        slot.starting, slot.since = slot.handle.ready.remote(), time.monotonic()


def message_of(problem: RayError) -> str:
    """Text of a Ray exception, with the traceback in the other process if there is one."""
    return str(problem.cause) if isinstance(problem, RayTaskError) and not str(problem) else str(problem)
