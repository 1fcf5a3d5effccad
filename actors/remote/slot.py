"""An actor's slot: a place in the pool that processes hold one after another, and the process itself.

A slot is empty (in the pause after a failure), starting, or at work. It is asked for unrolls and answers in the order
of the requests. The open requests of a lost process are dropped: no update has used them and none will.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import ObjectRef

from ...agents.process import prepare_process
from ...agents.values import Weights
from ..failures import Failures
from ..members import MakeActor, MemberActors, WeightsVersion
from ..unroll import Unroll
from .heartbeat import Heart, forget, interval, key_of, last_beat
from .stuck import ProcessPlace, StuckProcesses, place_of_this_process
from .wire import Parcel, pack, share_tensors

LOOK_SECONDS = 1.0
"""How often the slots are searched for processes that have been silent for too long."""
CLOSE_SECONDS = 3.0
"""In which actors close their environments at the end; then their processes are ended."""
START_TIMEOUT = 600.0
"""Seconds in which a process must have started: a node may have to be booted for it."""
FIRST_STEP_TIMEOUT = 120.0
"""Seconds, at least, that a new process may take for its first step, for which networks are loaded and compiled."""


@dataclass(eq=False)
class ActorSlot:
    """One slot of the pool."""

    number: int
    life: int = -1
    """Processes that held this slot before."""
    handle: Any = None
    """Ray's handle of the process at work or starting; None while the slot is empty."""
    starting: Any = None
    """Ray's reference to what the process says when it is ready; None from then on."""
    since: float = 0.0
    """Monotonic time of the last answer or heartbeat; of an empty slot, the time from which it may be filled again."""
    place: ProcessPlace | None = None
    """Where the process at work runs; None while it is starting or the slot is empty."""
    beat: bytes | None = None
    """The newest heartbeat of the process, where one was looked for."""
    stepped: bool = False
    """Whether the environments of the process at work are known to have stepped."""
    requests: deque["Request"] = field(default_factory=deque["Request"])
    """Those without an answer, oldest first."""
    asked: int = -1
    """Index of the last request."""
    versions: dict[int, int] = field(default_factory=dict[int, int])
    """Version of each member's weights that the process was sent last."""

    @property
    def at_work(self) -> bool:
        """Whether it can be asked for unrolls."""
        return self.handle is not None and self.starting is None


@dataclass(eq=False)
class Request:
    """Unrolls that were asked for."""

    slot: ActorSlot
    member: int
    unrolls: int
    index: int
    """How many requests were sent before."""
    ref: Any
    """Ray's reference to the answer."""
    answer: Unroll | None = None


class ActorSlots:
    """All slots of a pool: fills the empty ones, notices processes that are silent for too long.

    Args:
        make_actor: picklable function that makes an Actor.
        num_actors: how many slots; None: as many as the cluster has room for, now and later.
        failures: counts them.
        cpus_per_actor, gpus_per_actor: Ray resources that one process claims.
        timeout: seconds in which a process at work must answer, or its environments step.
        options: threads and niceness of each process.
        first: number of the first slot.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        num_actors: int | None,
        failures: Failures,
        *,
        cpus_per_actor: float,
        gpus_per_actor: float,
        timeout: float,
        options: tuple[int, int],
        first: int = 0,
    ) -> None:
        self.elastic = num_actors is None
        self._make_ref, self._options = ray.put(make_actor), options
        claims: dict[str, Any] = {"num_cpus": cpus_per_actor, "num_gpus": gpus_per_actor}
        self._remote = ray.remote(**claims, max_restarts=0, scheduling_strategy="SPREAD")(ActorProcess)
        self._failures, self._timeout = failures, timeout
        self._interval = interval(timeout)
        self.beats = 0
        """Heartbeats that were noticed."""
        self._stuck = StuckProcesses(ray.util.get_node_ip_address())
        self._look_at = 0.0
        if num_actors is None:
            free = ray.available_resources()
            room = [free.get("CPU", 0) / max(cpus_per_actor, 0.01)]
            room += [free.get("GPU", 0) / gpus_per_actor] if gpus_per_actor else []
            num_actors = max(1, int(min(room)))
        self._slots = [ActorSlot(first + number) for number in range(num_actors)]
        for slot in self._slots:
            self._start(slot)

    def __iter__(self) -> Iterator[ActorSlot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_at_work(self) -> int:
        """Slots whose process can be asked."""
        return sum(slot.at_work for slot in self._slots)

    def fill(self) -> None:
        """Start a process for each empty slot whose pause is over.

        Elastic slots always have one process starting, which Ray places once there is room: an empty slot's, or a new
        one's. So they find room that appears, and a cluster that can grow sees that more is wanted.
        """
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
        """The slots whose process has not answered, or not started, for too long, and why that is too long.

        `awaited` is what each slot is to answer next.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._failures.total:
            self._stuck.end_overdue()
        for ref, slot in awaited.items():
            if slot.starting is None:
                self._listen(slot, now)
                limit = self._timeout if slot.stepped else max(self._timeout, FIRST_STEP_TIMEOUT)
                what = "answered, nor its environments stepped,"
            else:
                limit, what = float("inf") if self.elastic else START_TIMEOUT, "started"
            if now - slot.since > limit and not ray.wait([ref], timeout=0)[0]:
                yield slot, f"actor {slot.number} has not {what} for {limit:.0f} s"

    def _listen(self, slot: ActorSlot, now: float) -> None:
        """Note the heartbeat of a process that has been silent for longer than a few take."""
        if now - slot.since > 3 * self._interval:
            beat = last_beat(key_of(slot.number, slot.life))
            if beat != slot.beat:
                slot.beat, slot.since, slot.stepped = beat, now, True
                self.beats += 1

    def lose(self, slot: ActorSlot, why: str, cause: object = None) -> None:
        """End a slot's process; another one follows after a pause. Raises ActorFailureError if it is one too many."""
        ray.kill(slot.handle)
        if slot.place is not None:
            self._stuck.note(slot.place)
        self._forget(slot)
        slot.handle = slot.starting = slot.place = None
        self._failures.add(slot.number, why, cause)
        slot.since = time.monotonic() + self._failures.pause(slot.number)

    def close(self) -> None:
        """Close all environments, where processes are not too busy with unrolls, and end the processes."""
        slots, self._slots = [slot for slot in self._slots if slot.handle is not None], []
        closing = [slot.handle.close.remote() for slot in slots if slot.at_work]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for slot in slots:
            ray.kill(slot.handle)
            self._forget(slot)

    def _forget(self, slot: ActorSlot) -> None:
        if slot.beat is not None:
            forget(key_of(slot.number, slot.life))
            slot.beat = None

    def _start(self, slot: ActorSlot) -> None:
        slot.life += 1
        slot.versions, slot.stepped = {}, False
        slot.handle = self._remote.remote(
            self._make_ref, slot.number, slot.life, os.getcwd(), *self._options, self._interval
        )
        slot.starting, slot.since = slot.handle.ready.remote(), time.monotonic()


class ActorProcess(MemberActors):
    """The process of a slot, as Ray runs it."""

    def __init__(
        self,
        make_actor: MakeActor,
        number: int,
        life: int,
        directory: str,
        threads: int,
        niceness: int,
        beat_seconds: float,
    ) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last: a user's module must not stand in for one of a library
        os.nice(niceness)
        prepare_process(threads)
        share_tensors()
        super().__init__(make_actor, number, life)
        self._heart = Heart(key_of(number, life), lambda: self.progress, beat_seconds)

    def ready(self) -> ProcessPlace:
        """Make the first actor: importing and compiling its environment is no part of any unroll's time.

        Returns where this process is.
        """
        self.prepare()
        return place_of_this_process(ray.util.get_node_ip_address())

    def answer(self, weights: Weights | WeightsVersion, count: int) -> Parcel | bytes:
        """Make `count` unrolls with these weights and pack them for the wire (MemberActors.unrolls)."""
        self._heart.busy_since = time.monotonic()
        try:
            return pack(self.unrolls(weights, count))
        except BaseException:
            self.close()  # the pool replaces this process
            raise
        finally:
            self._heart.busy_since = None
