"""Process of a learner with a share of every batch: separate actors, and updates synchronized with other learners."""
# pyright: reportPrivateUsage=false

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import ray
import torch
from ray.experimental import internal_kv
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from ...actors.pool import ActorPool
from ...actors.unroll import Unroll, header, join
from ...agents.values import Weights, flatten
from ..batches import Batcher, Group
from ..device.nccl import NcclGroup
from ..group import GlooGroup, GroupLostError
from ..learner import Learner
from .processes import RemoteProcess

CHECK_EVERY = 100  # Number of updates between two comparisons of the learners' weights
CONNECT_SECONDS = 8.0  # Seconds for learners to connect after the rendezvous; nothing is computed meanwhile
JOIN_SECONDS = 60.0
"""Seconds for a learner to find the others in its group; an unresponsive learner is detected earlier."""
PAUSE, CHECKS = 0.01, 50
"""Seconds between two checks for a key of the rendezvous, and their number between two calls of `keep_waiting`."""

MakePool = Callable[[Callable[[str], None]], ActorPool]
"""(report) -> the pool of one learner's actors."""


class RayStore(Store):
    """Rendezvous of a group in the key-value store of Ray's GCS, which only holders of Ray's token can read. An
    exception from `keep_waiting` ends the wait for a key."""

    def __init__(self, group: int, keep_waiting: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._prefix = f"engram-group-{ray.get_runtime_context().get_job_id()}-{group}"
        self._keep_waiting = keep_waiting

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        internal_kv._internal_kv_put(f"{self._prefix}-{key}", value if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a value and return it. Raises RuntimeError on timeout."""
        deadline = time.monotonic() + JOIN_SECONDS
        checks = 0
        while (value := internal_kv._internal_kv_get(f"{self._prefix}-{key}")) is None:  # pyright: ignore
            if time.monotonic() > deadline:
                raise RuntimeError(f"another learner did not join within {JOIN_SECONDS:.0f} s")
            checks += 1
            if checks % CHECKS == 0:
                self._keep_waiting()
            time.sleep(PAUSE)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        """Whether the store has the optional methods, which starting a group does not need."""
        return False

    def remove(self) -> None:
        """Delete all keys."""
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True)


def connect(
    group: int, rank: int, widths: Sequence[int], device: torch.device, keep_waiting: Callable[[], None]
) -> Group:
    """Connect to the other learners of the group with this index: with Gloo on CPUs, with NCCL on GPUs."""
    address = ray.util.get_node_ip_address()
    if device.type == "cuda":  # the rendezvous is part of the connection
        seconds = JOIN_SECONDS + CONNECT_SECONDS
        return NcclGroup(RayStore(group), rank, widths, device, address, keep_waiting, seconds)
    return GlooGroup(RayStore(group, keep_waiting), rank, widths, address, keep_waiting, CONNECT_SECONDS)


def digest(learner: Learner) -> str:
    """Return a hash of the weights after every CHECK_EVERY updates, otherwise an empty string."""
    if learner.updates % CHECK_EVERY:
        return ""
    return hashlib.blake2b(flatten(learner.agent).tobytes(), digest_size=16).hexdigest()


class Status(NamedTuple):
    """State of a learner's next batch, and events since the last status."""

    batch: Unroll | None  # `header` of the complete batch; None while there is none
    failures: int  # Actors that failed since the process started
    progress: int  # Counter that changes while environments step
    messages: list[str]  # Warnings for the user
    seconds: list[float]  # Wall time of acting for each unroll


class LearnerProcess(RemoteProcess):
    """Ray actor with a learner of rank 1 or more, whose share of a batch has `num_envs` environments or, if
    `synchronous`, is one unroll from each of its actors."""

    def __init__(
        self,
        make_learner: Callable[[], Learner],
        make_pool: MakePool,
        num_envs: int,
        synchronous: bool,
        directory: str,
    ) -> None:
        super().__init__(directory)
        self._messages: list[str] = []
        self._seconds: list[float] = []
        self._pool = make_pool(self._messages.append)
        self._learner = make_learner()
        self._synchronous = synchronous
        self._batcher, self._num_envs = Batcher(num_envs), num_envs
        self._batch: Unroll | None = None
        self._beginnings, self._first_version = -1, 0  # Of the newest weights; first version whose unrolls are used
        self._group = self._left = 0  # Indices of this process's group and of the newest group that has ended

    def join(self, group: int, rank: int, widths: Sequence[int], state: dict[str, Any]) -> None:
        """Continue from rank 0's state, in the group with this index."""
        self._group = group
        self._keep_waiting()
        self._learner.group.close()  # an abandoned exchange would occupy the GPU
        self._learner.load_state_dict(state)
        self._learner.join(connect(group, rank, widths, self._learner.device, self._keep_waiting))

    @ray.method(concurrency_group="control")
    def leave(self, group: int) -> None:
        """End every wait for other learners in this or an older group; runs concurrently with `join` and `learn`."""
        self._left = group

    def _keep_waiting(self) -> None:
        if self._group <= self._left:
            raise GroupLostError("the group was left")

    def collect(self, version: Weights | None, learned: int) -> Status:
        """Publish this learner's weights under `version`, unless it is None, and collect the next batch.

        Returns after a limited time, even without a complete batch. `learned`: environments of the last update.
        """
        if version is not None:
            if version.beginnings != self._beginnings:
                self._beginnings, self._first_version = version.beginnings, version.version
                self._batcher = Batcher(self._num_envs)
            self._pool.publish(version._replace(values=flatten(self._learner.agent)), learned)
        if self._batch is None and self._synchronous:
            unrolls = self._pool.gather() or []
            self._seconds += [unroll.seconds for unroll in unrolls]
            self._batch = join(unrolls) if unrolls else None
        elif self._batch is None:
            self._batch = self._batcher.next(self._next)
        seconds, self._seconds = self._seconds, []
        messages = self._messages[:]
        del self._messages[: len(messages)]
        facts = self._batch and header(self._batch)
        return Status(facts, self._pool.failures, self._pool.progress, messages, seconds)

    def _next(self) -> Unroll | None:
        while (unroll := self._pool.next()) is not None:
            self._seconds.append(unroll.seconds)
            if int(unroll.weights_version[0]) >= self._first_version:
                return unroll
        return None

    def learn(self) -> str:
        """Run one update of all learners from the collected batch; return the weights' hash from `digest`."""
        assert self._batch is not None, "collect() must return a complete batch first"
        self._learner.learn(self._batch)
        self._batch = None
        self._learner.read()
        return digest(self._learner)

    def save(self) -> list[Any]:
        """Return the exact state of every actor."""
        return self._pool.save()

    def restore(self, saved: list[Any]) -> None:
        """Continue from a state returned by `save`."""
        self._pool.restore(saved)

    def close(self) -> None:
        """Stop the actors."""
        self._pool.close()
