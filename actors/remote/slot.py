"""An actor's slot in the pool, which successive processes occupy, and the process itself.

A slot is empty (in the pause after a failure), starting, or active. It returns unrolls in the order of the
requests. The open requests of a lost process are dropped: no update has used their unrolls, and none will.
"""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import ray
from ray import ObjectRef
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...agents.process import prepare_process
from ...agents.values import Weights
from ..failures import Failures
from ..members import MakeActor, MemberActors, WeightsVersion
from ..unroll import Unroll, header
from .stuck import LONGEST_INTERVAL, Heart, ProcessPlace, StuckProcesses, key_of, last_beat, place_of_this_process
from .wire import pack, share_tensors

LOOK_SECONDS = 1.0  # Interval in seconds between checks for processes that do not respond
CLOSE_SECONDS = 3.0  # Seconds for actors to close their environments at the end, before their processes are killed
START_TIMEOUT = 600.0  # Seconds within which a process must start, which may require booting a node
FIRST_STEP_TIMEOUT = 120.0  # Smallest timeout of a new process's first step, which loads and compiles networks

MOST_AT_ONCE = 8  # Unrolls per request that suffice to amortize its cost
NARROW = 4  # Environments per actor up to which an unroll's transfer costs far less than its request (0.5 ms)
REQUESTS_PER_SLOT = 2  # Smallest limit of open requests per slot: one in progress, and the next one queued


@dataclass(eq=False)
class ActorSlot:
    number: int
    life: int = -1  # Number of earlier processes of this slot
    handle: Any = None  # Ray's handle of the active or starting process; None while the slot is empty.
    starting: Any = None  # Ray's reference to the ready notification of the process; None after it has arrived.
    since: float = 0.0
    """Monotonic time of the last response or heartbeat; for an empty slot, the earliest time at which to fill it."""
    place: ProcessPlace | None = None  # Location of the active process; None while it is starting or the slot is empty.
    beat: bytes | None = None  # Newest heartbeat read from the process
    stepped: bool = False  # Whether the environments of the active process are known to have stepped
    requests: deque["Request"] = field(default_factory=deque["Request"])  # Open requests, oldest first
    last_request: int = -1  # Index of the last request
    versions: dict[int, int] = field(default_factory=dict[int, int])  # Latest version sent of each member's weights
    served: Counter[int] = field(default_factory=Counter[int])  # Number of requests for each member

    @property
    def at_work(self) -> bool:
        """Whether the slot accepts requests for unrolls."""
        return self.handle is not None and self.starting is None


@dataclass(eq=False)
class Request:
    slot: ActorSlot
    member: int
    unrolls: int
    index: int  # Number of requests sent before
    ref: Any  # Ray's reference to the response
    parcel: Any = None  # Ray's reference to the packed unroll, if the response is without its state and steps
    answer: Unroll | None = None


class SlotOptions(TypedDict, total=False):
    """Options of the processes of a pool."""

    cpus_per_actor: float  # Ray resources that one actor reserves
    gpus_per_actor: float
    timeout: float  # Seconds without a response or an environment step after which an active actor is replaced
    niceness: int  # Scheduling niceness of actors, so that the learner has priority on their cores (0..19)
    first: int  # Index of the first actor, after those of the run's other pools
    near: bool  # Whether to prefer this process's machine as long as it has room


class ActorSlots:
    """All slots of a pool, with methods that fill empty slots and detect processes that do not respond; see RayPool."""

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int | None,
        failures: Failures,
        *,
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        timeout: float = 120.0,
        niceness: int = 0,
        first: int = 0,
        near: bool = False,
    ) -> None:
        self.elastic = num_actors is None
        self._make_ref, self._niceness = ray.put(make_actor), niceness
        claims: dict[str, Any] = {"num_cpus": cpus_per_actor, "num_gpus": gpus_per_actor}
        here = ray.get_runtime_context().get_node_id()
        place: Any = NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=True) if near else "SPREAD"
        self._remote = ray.remote(**claims, max_restarts=0, scheduling_strategy=place)(ActorProcess)
        self._failures, self.timeout = failures, timeout
        self._interval = min(LONGEST_INTERVAL, timeout / 8)  # Seconds between two heartbeats
        self.beats = 0  # Number of heartbeats read
        self._stuck = StuckProcesses(ray.util.get_node_ip_address())
        self._look_at = 0.0
        if num_actors is None:
            free = ray.available_resources()
            claimed = {"CPU": max(cpus_per_actor, 0.01), "GPU": gpus_per_actor}
            num_actors = max(1, int(min(free.get(kind, 0) / part for kind, part in claimed.items() if part)))
        self._slots = [ActorSlot(first + number) for number in range(num_actors)]
        for slot in self._slots:
            self._start(slot)

    def __iter__(self) -> Iterator[ActorSlot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def fill(self) -> None:
        """Start a process for each empty slot whose pause has ended. An elastic pool always has one starting process,
        in an empty or a new slot, which Ray places once there is room. So new resources are used, and an autoscaling
        cluster detects the demand."""
        empty = [slot for slot in self._slots if slot.handle is None]
        ready = [slot for slot in empty if slot.since <= time.monotonic()]
        if not self.elastic:
            for slot in ready:
                self._start(slot)
        elif not any(slot.starting is not None for slot in self._slots):
            if not empty:
                ready = [ActorSlot(len(self._slots))]
                self._slots += ready
            if ready:
                self._start(ready[0])

    def silent(self, awaited: "Mapping[ObjectRef[Any], ActorSlot]") -> Iterator[tuple[ActorSlot, str]]:
        """Yield the slots whose process has not responded or started within its limit, with the reason. `awaited` maps
        the next expected response of each slot to the slot."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._failures.total:
            self._stuck.end_overdue()
        for ref, slot in awaited.items():
            if slot.starting is None:
                overdue = now - slot.since > 3 * self._interval
                if overdue and (beat := last_beat(key_of(slot.number, slot.life))) != slot.beat:
                    slot.beat, slot.since, slot.stepped = beat, now, True
                    self.beats += 1
                limit = self.timeout if slot.stepped else max(self.timeout, FIRST_STEP_TIMEOUT)
                event = "responded or stepped its environments"
            else:
                limit, event = float("inf") if self.elastic else START_TIMEOUT, "started"
            if now - slot.since > limit and not ray.wait([ref], timeout=0)[0]:
                yield slot, f"actor {slot.number} has not {event} for {limit:.0f} s"

    def lose(self, slot: ActorSlot, why: str, cause: object = None) -> None:
        """Kill a slot's process; a new one starts after a pause. Raises ActorFailureError after too many failures."""
        ray.kill(slot.handle)
        if slot.place is not None:
            self._stuck.note(slot.place)
        slot.handle = slot.starting = slot.place = slot.beat = None
        self._failures.add(slot.number, why, cause)
        slot.since = time.monotonic() + self._failures.pause(slot.number)

    def close(self) -> None:
        """Close the environments of all processes that respond in time, and kill the processes."""
        slots, self._slots = [slot for slot in self._slots if slot.handle is not None], []
        closing = [slot.handle.close.remote() for slot in slots if slot.at_work]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for slot in slots:
            ray.kill(slot.handle)

    def _start(self, slot: ActorSlot) -> None:
        slot.life += 1
        slot.versions, slot.stepped = {}, False
        slot.handle = self._remote.remote(
            self._make_ref, slot.number, slot.life, os.getcwd(), self._niceness, self._interval
        )
        slot.starting, slot.since = slot.handle.ready.remote(), time.monotonic()


class RequestWindow:
    """Flow control of a stream of unrolls, which bounds policy lag: it limits open requests and orders the responses.

    Updates learn from a member's environments in the order of their requests, `batch_size` at a time. If E
    environments are requested and not yet learned from (including those of the batch being learned from), the last
    of them belongs to the ceil(E / batch_size)-th update from now, so the weights that act there will be
    ceil(E / batch_size) - 1 updates old when its unroll is learned from. A request that would exceed `max_lag`
    waits.

    With max_lag = 1 this is double buffering: one batch is made while another is learned from. The bound is independent
    of the number and speed of actors: a response that overtakes an older request waits for it. An actor that
    is far slower than the others is eventually skipped, and its unrolls are not used (`lost`).

    Args:
        batch_size: environments that one update learns from.
        max_lag: largest age, in updates, of the acting weights when an unroll is learned from.
        num_envs: environments per actor.
        num_actors: number of actor slots; None if it changes.
    """

    def __init__(self, batch_size: int, max_lag: int, num_envs: int, num_actors: int | None) -> None:
        self._size = (max_lag + 1) * batch_size
        ahead = max_lag * batch_size // ((num_actors or batch_size) * num_envs)
        self.unrolls = max(1, min(MOST_AT_ONCE, ahead)) if num_envs <= NARROW else 1
        """Consecutive unrolls per request, with the same weights."""
        self.requests_per_slot = max(REQUESTS_PER_SLOT, ahead // self.unrolls)
        self._width = self.unrolls * num_envs
        self._unlearned: Counter[int] = Counter()  # Environments requested and not yet learned from, by member
        self._order: dict[int, deque[Request]] = {}  # Requests with responses not yet returned, by member, oldest first

    def has_room(self, member: int) -> bool:
        """Whether another request for `member` would respect the bound."""
        return self._unlearned[member] + self._width <= self._size

    def sent(self, request: Request) -> None:
        self._unlearned[request.member] += self._width
        self._order.setdefault(request.member, deque()).append(request)

    def learned(self, member: int, environments: int) -> None:
        """Record an update of `member` from this number of environments."""
        self._unlearned[member] = max(0, self._unlearned[member] - environments)

    def lost(self, request: Request) -> None:
        """Record that a request gets no response, or gets one too late; no effect if this is already recorded."""
        order = self._order.get(request.member, deque())
        if request in order:
            order.remove(request)
            self._unlearned[request.member] -= self._width

    def forget(self, member: int) -> None:
        """Discard all open requests of a member, which continues with another member's weights."""
        self._order.pop(member, None)
        del self._unlearned[member]

    def next(self) -> Request | None:
        """Return the oldest request that is complete and next in its member's order; None without such a request."""
        heads = [order[0] for order in self._order.values() if order and order[0].answer is not None]
        if not heads:
            return None
        first = min(heads, key=lambda request: request.index)
        self._order[first.member].popleft()
        return first

    def blocking(self) -> ActorSlot | None:
        """Return the slot whose missing response (the oldest, if there are several) blocks others; None without one."""
        waiting = [order[0] for order in self._order.values() if any(request.answer is not None for request in order)]
        return min(waiting, key=lambda request: request.index).slot if waiting else None


class ActorProcess(MemberActors):
    """Ray actor that runs in the process of a slot."""

    def __init__(
        self, make_actor: MakeActor, number: int, life: int, directory: str, niceness: int, beat_seconds: float
    ) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last, so that a user's module does not shadow a library's
        os.nice(niceness)
        prepare_process(1)
        share_tensors()
        super().__init__(make_actor, number, life)
        self._heart = Heart(key_of(number, life), lambda: self.progress, beat_seconds)

    def ready(self) -> ProcessPlace:
        """Create the first actor, so that no unroll's time includes importing and compiling its environment. Returns
        the location of this process."""
        self.actor(0)
        return place_of_this_process(ray.util.get_node_ip_address())

    def answer(self, weights: Weights | WeightsVersion, count: int, apart: bool = False) -> Any:
        """Make `count` unrolls with these weights and pack them for transfer (MemberActors.unrolls).

        With `apart`, returns two parcels: one without state and steps, and the complete one.
        """
        self._heart.busy_since = time.monotonic()
        try:
            unrolls = self.unrolls(weights, count)
            return (pack(header(unrolls)), pack(unrolls)) if apart else pack(unrolls)
        except BaseException:
            self.close()  # the pool then replaces this process
            raise
        finally:
            self._heart.busy_since = None
