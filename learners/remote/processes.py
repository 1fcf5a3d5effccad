"""Processes of learners in Ray: what they claim, and their responses, which may be lost while this process waits."""

import os
import sys
import time
from contextlib import suppress
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...actors.failures import ActorFailureError
from ...actors.remote.stuck import ProcessPlace, StuckProcesses, place_of_this_process
from ...agents.process import prepare_process
from ...agents.values import map_leaves
from ...base.errors import NOT_AVAILABLE, EngramError
from ..group import GroupLostError, LearnerLossError

PATIENCE = 2.0  # Seconds of waiting for other learners' batches between checks for signals
SILENT_SECONDS = 5.0  # Seconds without a response to a ping after which a learner counts as lost
PING_SECONDS = 1.0  # Seconds between two pings; each interrupts the other learner's update for a millisecond
START_SECONDS = 600.0  # Seconds within which a learner's process must start, which may include booting a node
CLAIM_SECONDS = 60.0  # Seconds within which Ray must start the process of a claim; it cannot if all GPUs are claimed
MOST_LOSSES = 10  # Consecutive losses of learners that a run survives; the next one ends it
RESOURCE = "learner"  # Ray resource that reserves nodes for learners, if the cluster has it


def claims(device: torch.device) -> dict[str, Any]:
    """Return the Ray resources of a learner's process that computes on this type of device."""
    reserved = {RESOURCE: 1} if ray.cluster_resources().get(RESOURCE) else {}
    gpus = int(device.type == "cuda")
    placement = {"max_restarts": 0, "scheduling_strategy": "SPREAD"}
    return {"num_cpus": 1, "num_gpus": gpus, "resources": reserved, **placement}


class Claim:
    """Ray actor that occupies one GPU until its handle is deleted."""

    def gpu(self) -> str:
        """Return the GPU's name in CUDA_VISIBLE_DEVICES."""
        return str(ray.get_gpu_ids()[0])


def reserve(device: torch.device) -> Any:
    """Claim this process's device in Ray; return the claim, which ends when it is deleted; None for the CPU.

    Ray chooses the GPU of a claim. This node's GPUs are therefore claimed until the device is among them; the other
    claims then end. Raises EngramError if another process has claimed it.
    """
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

    def place(self) -> ProcessPlace:
        """Return the location of this process, once it is ready."""
        return place_of_this_process(ray.util.get_node_ip_address())

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Do nothing; a response shows that the process is alive. Runs concurrently with other methods."""


class ProcessHandle:
    """A starting or running RemoteProcess of this kind, for the run's process. `rank` is its index among the run's
    learners; `claim` its Ray resources (`claims`), the same for a replacement."""

    def __init__(self, kind: type[RemoteProcess], rank: int, claim: dict[str, Any], *arguments: Any) -> None:
        options: dict[str, Any] = {**claim, "concurrency_groups": {"control": 1}}
        made: Any = ray.remote(**options)(kind)
        self.rank, self.handle = rank, made.remote(*arguments)
        self.starting = self.handle.place.remote()
        self.ping: Any = None  # Ray's reference to the response; None while no response is expected
        self._pinged = 0.0

    @property
    def started(self) -> bool:
        """Whether the process is ready, or has ended."""
        return bool(ray.wait([self.starting], timeout=0)[0])

    def check(self) -> None:
        """Ping the process. Raises GroupLostError if it is dead or has not responded for too long."""
        now = time.monotonic()
        if self.ping is not None and ray.wait([self.ping], timeout=0)[0]:
            answer_of(self.ping, PATIENCE)
            self.ping = None
        if self.ping is None:
            if now - self._pinged > PING_SECONDS:
                self.ping, self._pinged = self.handle.ping.remote(), now
        elif now - self._pinged > SILENT_SECONDS:
            raise GroupLostError(f"learner {self.rank} has not responded for {SILENT_SECONDS:.0f} s")

    def end(self, stuck: StuckProcesses) -> None:
        """End the process."""
        ray.kill(self.handle)
        with suppress(RayError):
            stuck.note(ray.get(self.starting, timeout=PATIENCE))
