# pyright: reportPrivateUsage=false
"""An actor's slot in the pool, the processes that occupy it one after another, and flow control.

A slot is empty (in the pause after a failure), starting, or active. It returns unrolls in the order of the requests.

A response may take minutes: its number of steps times the time per step. While a request is open and environments
step, a thread of the process updates a counter in Ray's key-value store; the pool reads it if a response is overdue.
Ray detects processes that are stopped, or stuck in the kernel, only after many seconds.

Between processes, an unroll is packed: pickling a tensor takes longer than the rest of the transfer of a small unroll;
numpy pickles arrays in compiled code. A small unroll is sent as one string of bytes; the arrays of a large one are not
copied.
"""

import os
import pickle
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import psutil
import ray
import torch
from ray._private import worker
from ray.exceptions import RayError
from ray.experimental import internal_kv
from torch import Tensor

from ...agents.process import prepare_process
from ...agents.values import Weights, map_leaves
from ..actor import MakeActor, MemberActors, WeightsVersion
from ..packed import header
from ..unroll import Unroll

SMALL_BYTES = 1 << 16  # Size below which an unroll is one string: a copy takes 5 us, a dozen buffers 100 us
MOST_AT_ONCE = 8  # Unrolls per request that suffice to amortize its cost
NARROW = 4  # Environments per actor up to which an unroll's transfer costs far less than its request (0.5 ms)
REQUESTS_PER_SLOT = 2  # Smallest limit of open requests per slot: one in progress, and the next one queued
NEEDED = ("raylet", "gcs_server")  # Ray's processes without which a run cannot continue
GRACE_SECONDS = 2.0  # Seconds for Ray to end a process itself, including child processes of environments


class ProcessPlace(NamedTuple):
    machine: str  # Address of its machine
    pid: int
    started: float  # Start time, to distinguish processes with a reused id


def place_of_this_process(machine: str) -> ProcessPlace:
    process = psutil.Process()
    return ProcessPlace(machine, process.pid, process.create_time())


@dataclass(eq=False)
class ActorSlot:
    number: int
    life: int = -1  # Number of earlier processes of this slot
    handle: Any = None  # Ray's handle of the active or starting process; None while the slot is empty.
    starting: Any = None  # Ray's reference to the ready notification of the process; None after it has arrived.
    since: float = 0.0
    """Monotonic time of the last response or heartbeat; for an empty slot, the earliest time at which to fill it."""
    place: ProcessPlace | None = None  # Location of the active process
    beat: bytes | None = None  # Newest heartbeat read from the process
    stepped: bool = False  # Whether the environments of the active process are known to have stepped
    requests: deque["Request"] = field(default_factory=deque["Request"])  # Open requests, oldest first
    last_request: int = -1  # Index of the last request
    versions: dict[int, int] = field(default_factory=dict[int, int])  # Latest version sent of each member's weights
    served: Counter[int] = field(default_factory=Counter[int])  # Number of requests for each member

    @property
    def at_work(self) -> bool:
        return self.handle is not None and self.starting is None

    def last_beat(self) -> bytes | None:
        """Newest heartbeat of the process; None if there is none or Ray does not respond."""
        with suppress(Exception):
            return internal_kv._internal_kv_get(key_of(self.number, self.life))
        return None


@dataclass(eq=False)
class Request:
    slot: ActorSlot
    member: int
    index: int  # Number of requests sent before
    ref: Any  # Ray's reference to the response
    parcel: Any = None  # Ray's reference to the packed unroll, if the response is without its state and steps
    answer: Unroll | None = None


class RequestWindow:
    """Flow control of a stream of unrolls, which bounds policy lag: it limits open requests and orders the responses.

    Updates learn from a member's environments in the order of their requests, `batch_size` at a time. If E
    environments are requested and not yet learned from, the last of them belongs to the ceil(E / batch_size)-th update
    from now, so the weights that act there will be ceil(E / batch_size) - 1 updates old when its unroll is learned
    from. A request that would exceed `max_lag` waits. With max_lag = 1 this is double buffering. The bound holds for
    any number and speed of actors: a response that overtakes an older request waits for it.

    Args:
        batch_size: environments that one update learns from.
        max_lag: largest age, in updates, of the acting weights when an unroll is learned from.
        num_envs: environments per actor.
        num_actors: number of actor slots; None if it changes.
    """

    def __init__(self, batch_size: int, max_lag: int, num_envs: int, num_actors: int | None) -> None:
        self._size = (max_lag + 1) * batch_size
        ahead = max_lag * batch_size // ((num_actors or batch_size) * num_envs)
        self.unrolls = max(1, min(MOST_AT_ONCE, ahead)) if num_envs <= NARROW else 1  # Consecutive ones per request
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
        first = min(heads, key=lambda request: request.index, default=None)
        return self._order[first.member].popleft() if first else None

    def blocking(self) -> ActorSlot | None:
        """Return the slot whose missing response (the oldest, if there are several) blocks others; None without one."""
        waiting = [order[0] for order in self._order.values() if any(request.answer is not None for request in order)]
        return min(waiting, key=lambda request: request.index).slot if waiting else None


def share_tensors() -> None:
    """Make Ray transfer tensors as numpy arrays: out-of-band buffers, read without a copy."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    ray.util.register_serializer(Tensor, serializer=lambda x: x.detach().numpy(), deserializer=torch.from_numpy)


def dead_part() -> str:
    """Name of a dead main process of this process's private Ray session; empty if none is dead or it has none."""
    node: Any = getattr(worker, "_global_node", None)
    dead = {str(name) for name, _ in node.dead_processes()} if node is not None else set[str]()
    return next((f"Ray's {name}" for name in NEEDED if name in dead), "")


def fetch(refs: "Sequence[ray.ObjectRef[Any]]", patience: float, timeout: float) -> list[Any]:
    """Return the value of each of `refs`, or the RayError of a lost one: all within `patience` seconds or, to attribute
    an error, one by one within `timeout` seconds each."""
    with suppress(RayError):
        return ray.get(list(refs), timeout=patience)
    values: list[Any] = []
    for ref in refs:
        try:
            values.append(ray.get(ref, timeout=timeout))
        except RayError as problem:
            values.append(problem)
    return values


def key_of(number: int, life: int) -> str:
    """Key of the heartbeats of process `life` of slot `number` of this job's pool."""
    return f"engram-heartbeat-{ray.get_runtime_context().get_job_id()}-{number}-{life}"


class ActorProcess(MemberActors):
    """Ray actor in the process of a slot."""

    def __init__(
        self, make_actor: MakeActor, number: int, life: int, directory: str, niceness: int, beat_seconds: float
    ) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last, so that a user's module does not shadow a library's
        os.nice(niceness)
        prepare_process(1)
        share_tensors()
        super().__init__(make_actor, number, life)
        self._busy_since: float | None = None  # Monotonic time at which the open request arrived
        threading.Thread(target=self._beat, args=(key_of(number, life), beat_seconds), daemon=True).start()

    def _beat(self, key: str, seconds: float) -> None:
        """Update `key` every few `seconds` while a request is open and environments step."""
        sent = 0
        while True:
            time.sleep(seconds)
            since, now = self._busy_since, self.progress
            if since is not None and time.monotonic() - since > seconds and now != sent:
                with suppress(Exception):  # a lost beat is followed by another one
                    internal_kv._internal_kv_put(key, str(now))
                sent = now

    def ready(self) -> ProcessPlace:
        """Create the first actor, so that no unroll's time includes importing and compiling its environment."""
        self.actor(0)
        return place_of_this_process(ray.util.get_node_ip_address())

    def answer(self, weights: Weights | WeightsVersion, count: int, apart: bool = False) -> Any:
        """Make and pack `count` unrolls; with `apart`, two parcels: one without state and steps, and the whole one."""
        self._busy_since = time.monotonic()
        try:
            unrolls = self.unrolls(weights, count)
            return (pack(header(unrolls)), pack(unrolls)) if apart else pack(unrolls)
        except BaseException:
            self.close()  # the pool then replaces this process
            raise
        finally:
            self._busy_since = None


class StuckProcesses:
    """Processes on this machine, which has this address, that should end soon."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._due: list[tuple[float, ProcessPlace]] = []  # Monotonic times at which processes must have ended

    def note(self, process: ProcessPlace) -> None:
        """Register a process that Ray should end; processes on other machines are left to Ray."""
        if process.machine == self._machine:
            self._due.append((time.monotonic() + GRACE_SECONDS, process))

    def end_overdue(self) -> None:
        now = time.monotonic()
        for _, place in (entry for entry in self._due if entry[0] <= now):
            with suppress(psutil.Error):
                process = psutil.Process(place.pid)
                if process.create_time() == place.started:
                    process.kill()
        self._due = [entry for entry in self._due if entry[0] > now]


def pack(unroll: Any) -> Any:
    """Replace the tensors of a structure with arrays, which must not change until pickled; pickle a small structure."""
    nbytes = 0

    def as_array(value: Any) -> Any:
        nonlocal nbytes
        if not isinstance(value, Tensor):
            return value
        nbytes += value.nbytes
        return value.detach().cpu().contiguous().numpy()

    arrays = map_leaves(as_array, unroll)
    return pickle.dumps(arrays, protocol=5) if nbytes < SMALL_BYTES else arrays


def unpack(parcel: Any) -> Any:
    """Restore a packed structure, bit for bit; its tensors are read-only views of the parcel."""
    arrays = pickle.loads(parcel) if isinstance(parcel, bytes) else parcel
    return map_leaves(lambda value: torch.from_numpy(value) if isinstance(value, np.ndarray) else value, arrays)
