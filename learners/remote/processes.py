"""Processes of learners in Ray: what they claim, their responses, and the process with a share of every batch."""
# pyright: reportPrivateUsage=false

import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from ...actors.packed import header
from ...actors.pool import ActorFailureError, ActorPool
from ...actors.unroll import Unroll, join
from ...agents.process import prepare_process
from ...agents.values import Weights, flatten, map_leaves
from ...base.errors import NOT_AVAILABLE, EngramError
from ..batches import Batcher, Group
from ..group import GlooGroup, GroupLostError, LearnerLossError, NcclGroup
from ..learner import Learner

PATIENCE = 2.0  # Seconds of waiting for other learners' batches between checks for signals
SILENT_SECONDS = 5.0  # Seconds without a response to a ping after which a learner counts as lost
PING_SECONDS = 1.0  # Seconds between two pings; each interrupts the other learner's update for a millisecond
START_SECONDS = 600.0  # Seconds within which a learner's process must start, which may include booting a node
CLAIM_SECONDS = 60.0  # Seconds within which Ray must start the process of a claim; it cannot if all GPUs are claimed
RESOURCE = "learner"  # Ray resource that reserves nodes for learners, if the cluster has it
CHECK_EVERY = 100  # Number of updates between two comparisons of the learners' weights
CONNECT_SECONDS = 8.0  # Seconds for learners to connect after the rendezvous; nothing is computed meanwhile
JOIN_SECONDS = 60.0  # Seconds for a learner to find the others in its group; unresponsive ones are detected earlier
PAUSE, CHECKS = 0.01, 50  # Seconds between checks for a key of the rendezvous; checks between calls of `keep_waiting`
MakePool = Callable[[Callable[[str], None]], ActorPool]  # (report) -> the pool of one learner's actors


def claims(device: torch.device) -> dict[str, Any]:
    """Return the Ray resources of a learner's process that computes on this type of device."""
    reserved = {RESOURCE: 1} if ray.cluster_resources().get(RESOURCE) else {}
    placement = {"max_restarts": 0, "scheduling_strategy": "SPREAD"}
    return {"num_cpus": 1, "num_gpus": int(device.type == "cuda"), "resources": reserved, **placement}


class Claim:
    """Ray actor that occupies one GPU until its handle is deleted."""

    def gpu(self) -> str:
        return str(ray.get_gpu_ids()[0])


def reserve(device: torch.device) -> Any:
    """Claim this process's device in Ray; return the claim, which ends when it is deleted; None for the CPU. Ray
    chooses the GPU, so this node's are claimed until the device is among them. Raises EngramError if it is taken."""
    if device.type != "cuda":
        return None
    visible, index = os.environ.get("CUDA_VISIBLE_DEVICES", ""), device.index or 0
    wanted = visible.split(",")[index] if visible else str(index)
    here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    make: Any = ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=here)(Claim)
    claimed: dict[str, Any] = {}
    while wanted not in claimed:
        claim = make.remote()
        try:
            gpu: Any = ray.get(claim.gpu.remote(), timeout=CLAIM_SECONDS)
        except GetTimeoutError:
            free = ", ".join(sorted(claimed)) or "none"
            raise EngramError(
                f"--device {device}: another process has claimed GPU {wanted} of this machine in Ray; free: {free}",
                NOT_AVAILABLE,
            ) from None
        claimed[gpu] = claim
    return claimed[wanted]


def on_cpu(state: Any) -> Any:
    """Copy the tensors of a state to the CPU: the index of a GPU differs between processes."""
    return map_leaves(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, state)


def answer_of(ref: Any, seconds: float) -> Any:
    """Return a response of another learner. Raises GroupLostError if its process is lost or has left the group, and the
    ActorFailureError of its actors."""
    try:
        return ray.get(ref, timeout=seconds)
    except RayTaskError as problem:
        if isinstance(problem.cause, ActorFailureError | GroupLostError):
            raise problem.cause from None
        raise LearnerLossError(f"another learner failed:\n{problem}") from problem
    except RayError as problem:
        lines = str(problem).splitlines() or [type(problem).__name__]
        raise GroupLostError(f"a learner is lost ({lines[0]})") from problem


class RemoteProcess:
    """Ray actor with learners. `directory` is the working directory of the run, for a user's modules."""

    def __init__(self, directory: str) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last: a user's module must not shadow a library's
        prepare_process(1)

    def machine(self) -> str:
        return ray.util.get_node_ip_address()

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Do nothing; a response shows that the process is alive. Runs concurrently with other methods."""


class ProcessHandle:
    """A starting or running RemoteProcess of this kind, for the run's process. `rank` is its index among the run's
    learners; `claim` its Ray resources (`claims`)."""

    def __init__(self, kind: type[RemoteProcess], rank: int, claim: dict[str, Any], *arguments: Any) -> None:
        options: dict[str, Any] = {**claim, "concurrency_groups": {"control": 1}}
        made: Any = ray.remote(**options)(kind)
        self.rank, self.handle = rank, made.remote(*arguments)
        self.starting = self.handle.machine.remote()
        self._ping, self._pinged = self.starting, 0.0  # Ray's reference to the response, and when it was requested

    def wait(self) -> None:
        answer_of(self.starting, START_SECONDS)

    def check(self) -> None:
        """Ping the process. Raises GroupLostError if it is dead or has not responded for too long."""
        seconds = time.monotonic() - self._pinged
        if ray.wait([self._ping], timeout=0)[0]:
            answer_of(self._ping, PATIENCE)
            if seconds > PING_SECONDS:
                self._ping, self._pinged = self.handle.ping.remote(), time.monotonic()
        elif seconds > SILENT_SECONDS:
            raise GroupLostError(f"learner {self.rank} has not responded for {SILENT_SECONDS:.0f} s")


class RayStore(Store):
    """Rendezvous of a group in the key-value store of Ray's GCS, which only holders of Ray's token can read. An
    exception from `keep_waiting` ends the wait for a key."""

    def __init__(self, group: int, keep_waiting: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._prefix = f"engram-group-{ray.get_runtime_context().get_job_id()}-{group}"
        self._keep_waiting = keep_waiting

    def set(self, key: str, value: Any) -> None:
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
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        """Whether the store has the optional methods, which starting a group does not need."""
        return False

    def remove(self) -> None:
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True)


def connect(
    group: int, rank: int, widths: Sequence[int], device: torch.device, keep_waiting: Callable[[], None]
) -> Group:
    """Connect to the other learners of the group with this index: with Gloo on CPUs, with NCCL on GPUs."""
    address = ray.util.get_node_ip_address()
    if device.type == "cuda":  # the rendezvous is part of the connection
        return NcclGroup(RayStore(group), rank, widths, device, address, keep_waiting, JOIN_SECONDS + CONNECT_SECONDS)
    return GlooGroup(RayStore(group, keep_waiting), rank, widths, address, keep_waiting, CONNECT_SECONDS)


def digest(learner: Learner) -> str:
    """Return a hash of the weights after every CHECK_EVERY updates, otherwise an empty string."""
    if learner.updates % CHECK_EVERY:
        return ""
    return hashlib.blake2b(flatten(learner.agent).tobytes(), digest_size=16).hexdigest()


class LearnerProcess(RemoteProcess):
    """Ray actor with a learner of rank 1 or more, whose share of a batch has `num_envs` environments or, if
    `synchronous`, is one unroll from each of its actors."""

    def __init__(
        self, make_learner: Callable[[], Learner], make_pool: MakePool, num_envs: int, synchronous: bool, directory: str
    ) -> None:
        super().__init__(directory)
        self._messages: list[str] = []
        self._seconds: list[float] = []
        self._pool, self._learner, self._synchronous = make_pool(self._messages.append), make_learner(), synchronous
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

    def collect(self, version: Weights | None, learned: int) -> tuple[Unroll | None, int, int, list[str], list[float]]:
        """Publish this learner's weights under `version`, unless it is None, and collect the next batch for a limited
        time; `learned` counts the environments of the last update. Return the batch's header (None while incomplete),
        the pool's failures and progress, and new warnings and wall times of acting for each unroll."""
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
        messages = [self._messages.pop(0) for _ in range(len(self._messages))]
        return self._batch and header(self._batch), self._pool.failures, self._pool.progress, messages, seconds

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
        return self._pool.save()

    def restore(self, saved: list[Any]) -> None:
        self._pool.restore(saved)

    def close(self) -> None:
        self._pool.close()
