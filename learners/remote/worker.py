"""Process of a learner with a share of every batch: separate actors, and updates synchronized with other learners."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayError

from ...actors.pool import ActorPool
from ...actors.remote.stuck import ProcessPlace, StuckProcesses, place_of_this_process
from ...actors.unroll import Unroll, header, join
from ...agents.process import prepare_process
from ...agents.values import Weights, flatten, map_leaves
from ..batches import Batcher, Group
from ..device.nccl import NcclGroup
from ..group import GlooGroup, GroupLostError
from ..learner import Learner
from .answers import PATIENCE, Pulse
from .store import JOIN_SECONDS, RayStore

CHECK_EVERY = 100
"""Number of updates between two comparisons of the learners' weights."""
CONNECT_SECONDS = 8.0
"""Seconds for learners to connect after the rendezvous; nothing is computed meanwhile."""
RESOURCE = "learner"
"""Ray resource that reserves nodes for learners, if the cluster has it."""

MakePool = Callable[[Callable[[str], None]], ActorPool]
"""(report) -> the pool of one learner's actors."""


class Status(NamedTuple):
    """State of a learner's next batch, and events since the last status."""

    batch: Unroll | None
    """`header` of the complete batch; None while there is none."""
    failures: int
    """Actors that failed since the process started."""
    progress: int
    """Counter that changes while environments step."""
    messages: list[str]
    """Warnings for the user."""
    seconds: list[float]
    """Wall time of acting for each unroll."""


def claims(device: torch.device) -> dict[str, Any]:
    """Return the Ray resources of a learner's process that computes on this type of device."""
    reserved = {RESOURCE: 1} if ray.cluster_resources().get(RESOURCE) else {}
    gpus = int(device.type == "cuda")
    placement = {"max_restarts": 0, "scheduling_strategy": "SPREAD"}
    return {"num_cpus": 1, "num_gpus": gpus, "resources": reserved, **placement}


def on_cpu(state: Any) -> Any:
    """Copy the tensors of a state to the CPU: the index of a GPU differs between processes."""
    return map_leaves(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, state)


def prefix_of(group: int) -> str:
    """Prefix of the rendezvous keys of the group with this index."""
    return f"engram-group-{ray.get_runtime_context().get_job_id()}-{group}"


def connect(
    group: int, rank: int, widths: Sequence[int], device: torch.device, keep_waiting: Callable[[], None]
) -> Group:
    """Connect to the other learners of the group with this index: with Gloo on CPUs, with NCCL on GPUs."""
    prefix, address = prefix_of(group), ray.util.get_node_ip_address()
    if device.type == "cuda":  # the rendezvous is part of the connection
        store, seconds = RayStore(prefix), JOIN_SECONDS + CONNECT_SECONDS
        return NcclGroup(store, rank, widths, device, address, keep_waiting, seconds)
    store = RayStore(prefix, keep_waiting)
    return GlooGroup(store, rank, widths, address, keep_waiting, CONNECT_SECONDS)


def digest(learner: Learner) -> str:
    """Return a hash of the weights after every CHECK_EVERY updates, otherwise an empty string."""
    if learner.updates % CHECK_EVERY:
        return ""
    return hashlib.blake2b(flatten(learner.agent).tobytes(), digest_size=16).hexdigest()


class RemoteProcess:
    """Ray actor with learners.

    Args:
        directory: working directory of the run, for a user's modules.
    """

    def __init__(self, directory: str) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last: a user's module must not shadow a library's
        prepare_process(1)

    def place(self) -> ProcessPlace:
        """Return the location of this process, once it is ready."""
        return place_of_this_process(ray.util.get_node_ip_address())

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Do nothing; a response shows that the process is alive. Runs concurrently with other methods."""


class ProcessHandle:
    """A starting or running RemoteProcess, for the run's process.

    Args:
        kind: class of the process.
        rank: index of the process among the run's learners.
        claim: Ray resources that the process claims (`claims`); a replacement claims the same.
        arguments: arguments of that class.
    """

    def __init__(self, kind: type[RemoteProcess], rank: int, claim: dict[str, Any], *arguments: Any) -> None:
        options: dict[str, Any] = {**claim, "concurrency_groups": {"control": 1}}
        made: Any = ray.remote(**options)(kind)
        self.rank, self.handle = rank, made.remote(*arguments)
        self.starting, self.pulse = self.handle.place.remote(), Pulse(self.handle, f"learner {rank}")

    @property
    def started(self) -> bool:
        """Whether the process is ready, or has ended."""
        return bool(ray.wait([self.starting], timeout=0)[0])

    def end(self, stuck: StuckProcesses) -> None:
        """End the process."""
        ray.kill(self.handle)
        with suppress(RayError):
            stuck.note(ray.get(self.starting, timeout=PATIENCE))


class LearnerProcess(RemoteProcess):
    """Ray actor with a learner of rank 1 or more.

    Args:
        make_learner: creates the learner; `join` sets weights and counters.
        make_pool: creates the learner's actors.
        num_envs: number of environments in the learner's share of a batch.
        synchronous: whether a batch is one unroll from each of these actors.
        directory: see RemoteProcess.
    """

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
        self._version = Weights(-1, 0, flatten(self._learner.agent)[:0], -1)
        self._first_version = 0
        """First version of the weights whose unrolls are used."""
        self._group = self._left = 0
        """Indices of this process's group and of the newest group that has ended."""

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
            if version.beginnings != self._version.beginnings:
                self._first_version, self._batcher = version.version, Batcher(self._num_envs)
            self._version = version
            self._pool.publish(version._replace(values=flatten(self._learner.agent)), learned)
        if self._batch is None:
            self._batch = self._gather() if self._synchronous else self._batcher.next(self._next)
        seconds, self._seconds = self._seconds, []
        messages = self._messages[:]
        del self._messages[: len(messages)]
        facts = self._batch and header(self._batch)
        return Status(facts, self._pool.failures, self._pool.progress, messages, seconds)

    def _gather(self) -> Unroll | None:
        unrolls = self._pool.gather()
        if unrolls is None:
            return None
        self._seconds += [unroll.seconds for unroll in unrolls]
        return join(unrolls)

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
