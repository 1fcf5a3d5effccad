"""Learners of a population's members in other processes: each learns from whole batches, without sums of gradients.

The run's process has a copy of every member's weights and optimizer, and decides about updates. Unrolls go from the
actors straight to the assigned process, or, in synchronous mode, batches from the run's process. Results equal those of
a learner in the run's process, bit for bit. If a process is lost, another one on the run's machine repeats its updates.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...actors.remote.stuck import ProcessPlace, StuckProcesses, place_of_this_process
from ...actors.remote.wire import Parcel, pack, share_tensors, unpack
from ...actors.unroll import Stored, Unroll, join, some_environments
from ...agents.agent import Agent
from ...agents.process import prepare_process
from ...agents.threads import use_threads
from ...agents.values import flatten, load
from ..config import LearnerConfig
from ..group import LOOK_SECONDS, GroupLostError, LearnerLossError
from ..learner import Learner
from .answers import MOST_LOSSES, PATIENCE, START_SECONDS, Pulse, answer_of
from .worker import claims, on_cpu

FETCH_SECONDS = 10.0  # Seconds within which a process must have an unroll; the machine with it may be unreachable


class Answer(NamedTuple):
    """Weights and metrics of members after an update."""

    weights: NDArray[np.float32]
    metrics: list[dict[str, float]]
    updates: int
    steps: int
    skipped: int
    cause: str | None
    effective: dict[str, float]
    """Values of the requested settings."""
    optimizer: dict[str, Any]
    """State of the optimizer."""


class MemberProcess:
    """Ray actor with the learners of some members.

    Args:
        make_learner: creates a learner, whose state is set later.
        directory: working directory of the run, for a user's modules.
        threads: CPU threads.
    """

    def __init__(self, make_learner: Callable[[], Learner], directory: str, threads: int) -> None:
        if directory not in sys.path:
            sys.path.append(directory)  # last: a user's module must not shadow one of a library
        prepare_process(1)
        share_tensors()
        self._make_learner, self._threads = make_learner, threads
        self._learners: dict[int, Learner] = {}

    def place(self) -> ProcessPlace:
        """Return the location of this process, once it is ready."""
        return place_of_this_process(ray.util.get_node_ip_address())

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Return, which shows that this process is alive; called alongside others."""

    def begin(self, member: int, state: dict[str, Any], config: LearnerConfig) -> None:
        """Create a member's learner in this state."""
        self._learners[member] = self._make_learner()
        self._learners[member].load_state_dict(state)
        self._learners[member].reconfigure(config)

    def learn(
        self, member: int, settings: Sequence[str], parts: Sequence[slice], parcels: Sequence[Any]
    ) -> Answer | None:
        """Run one update of a member from these environments of each parcel, or of Ray's reference to one; report the
        values of these settings. None without an update if a parcel is lost."""
        use_threads(self._threads)
        try:
            unrolls = [unpack(_fetched(parcel)) for parcel in parcels]
        except RayError:
            return None
        learner = self._learners[member]
        learner.learn(join([some_environments(unroll, part) for unroll, part in zip(unrolls, parts, strict=True)]))
        metrics, effective = learner.read(), {name: learner.effective(name) for name in settings}
        facts = learner.updates, learner.steps, learner.skipped, learner.cause, effective
        return Answer(flatten(learner.agent), metrics, *facts, on_cpu(learner.optimizer.state_dict()))

    def call(self, member: int, name: str, *arguments: Any) -> Any:
        """Call a method of a member's learner."""
        return on_cpu(getattr(self._learners[member], name)(*arguments))


def _fetched(parcel: Any) -> Parcel | bytes:
    return ray.get(parcel, timeout=FETCH_SECONDS) if isinstance(parcel, ray.ObjectRef) else parcel


class MemberHome:
    """The process of some members' learners, or its replacement.

    Args:
        rank: index of the process among the run's learners; the run's own process has 0.
        make_learner: creates a learner, whose state is set later.
        device: device of the run's learner; the process uses one of the same type.
        report: displays a message to the user.
        threads: CPU threads of the process.
    """

    def __init__(
        self,
        rank: int,
        make_learner: Callable[[], Learner],
        device: torch.device,
        report: Callable[[str], None],
        threads: int = 1,
    ) -> None:
        self._rank, self._arguments, self._device = rank, (make_learner, os.getcwd(), threads), device
        self.report = report
        self.moved: Callable[[int, str], None] = lambda rank, machine: None
        """Called after a replacement, with the rank and the address of its machine."""
        self.starts = self._losses = 0
        self._stuck = StuckProcesses(ray.util.get_node_ip_address())
        self._start(claims(device))

    def _start(self, options: dict[str, Any]) -> None:
        options["concurrency_groups"] = {"control": 1}
        made: Any = ray.remote(**options)(MemberProcess)
        self.handle = made.remote(*self._arguments)
        self.starts += 1
        self._starting, self._pulse = self.handle.place.remote(), Pulse(self.handle, f"learner {self._rank}")

    def machine(self) -> str:
        """Return the address of the process's machine, once it is ready."""
        return answer_of(self._starting, START_SECONDS).machine

    def get(self, ref: Any) -> Any:
        """Return a response. Raises GroupLostError as soon as the process is dead or has not responded for too long."""
        while not ray.wait([ref], timeout=LOOK_SECONDS)[0]:
            self._pulse.check()
        response, self._losses = answer_of(ref, PATIENCE), 0
        return response

    def replace(self, problem: GroupLostError) -> None:
        """Start another process: on this machine, where the members' states are; on GPUs wherever one is free."""
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise LearnerLossError(f"learner {self._rank} was lost {self._losses} times in a row: {problem}")
        self.report(f"{problem}: another process continues with the members of learner {self._rank}")
        with suppress(RayError):
            self._stuck.note(ray.get(self._starting, timeout=PATIENCE))
        ray.kill(self.handle)
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        gpu = self._device.type == "cuda"
        self._start(claims(self._device) if gpu else {"num_cpus": 0, "scheduling_strategy": here})
        while not ray.wait([self._starting], timeout=LOOK_SECONDS)[0]:
            self._stuck.end_overdue()
        self.moved(self._rank, self.machine())


class RemoteLearner(Learner):
    """Learner whose updates run in another process.

    Args:
        home: its process.
        member: index of the member in that process.
        claim: kept as long as this learner (see gpus.py).
    """

    def __init__(
        self, agent: Agent, config: LearnerConfig, total_steps: int, home: MemberHome, member: int, claim: Any = None
    ) -> None:
        self._home, self._member, self._claim = home, member, claim
        super().__init__(agent, config, total_steps)
        self._at = 0
        """Which of its home's processes has this learner's state."""
        self._batch: Unroll | None = None
        self._learning: Any = None
        self._newest = self.optimizer.state_dict()
        """State of the optimizer in the other process."""
        self._effective: dict[str, float] = {}
        """Values of settings in the other process since the last update or change."""

    def send(self, batch: Unroll) -> None:
        """Do nothing: `begin` sends the batch to the other process."""

    def learn(self, batch: Unroll) -> None:
        self.begin(batch)
        self.finish()

    def begin(self, batch: Unroll) -> None:
        """Make the other process learn from a batch, whose unrolls it fetches if they are in Ray's store."""
        self._batch, self._learning = batch, None
        if self._at == self._home.starts:
            self._learning = self._send()

    def finish(self) -> None:
        """Wait for the update, and copy its results."""
        result: Answer | None = self._get(lambda: self._send() if self._learning is None else self._learning)
        self._batch = self._learning = None
        if result is None:
            self._home.report(f"unrolls of member {self._member} were lost with their machine: they are not used")
            return
        load(self.agent, result.weights)
        self.updates, self.steps, self._skipped, self.cause, self._effective, self._newest = result[2:]
        self._read += result.metrics

    def _send(self) -> Any:
        batch = self._batch
        assert batch is not None, "begin() comes before"
        stored = batch.stored or (Stored(pack(batch), 0, len(batch.weights_version)),)
        parts = [slice(each.first, each.end) for each in stored]
        parcels = [each.parcel for each in stored]
        return self._home.handle.learn.remote(self._member, list(self._effective), parts, parcels)

    def reconfigure(self, config: LearnerConfig) -> None:
        super().reconfigure(config)
        self._change("reconfigure", config)

    def effective(self, setting: str) -> float:
        if setting not in self._effective:
            self._effective[setting] = self._call("effective", setting)
        return self._effective[setting]

    def take_over(self, agent: dict[str, Any], optimizer: dict[str, Any]) -> None:
        super().take_over(agent, optimizer)
        self._newest = self.optimizer.state_dict()
        self._change("take_over", agent, optimizer)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"optimizer": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        super().load_state_dict(state)
        self._change("load_state_dict", state)

    def _change(self, name: str, *arguments: Any) -> None:
        self._effective = {}
        self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._get(lambda: self._home.handle.call.remote(self._member, name, *map(on_cpu, arguments)))

    def _get(self, request: Callable[[], Any]) -> Any:
        """Return the response to a request; if the process is lost, its replacement gets the newest state and the same
        request."""
        while True:
            try:
                if self._at != self._home.starts:
                    self._at, self._learning = self._home.starts, None
                    self._home.get(self._home.handle.begin.remote(self._member, on_cpu(self.state_dict()), self.config))
                return self._home.get(request())
            except GroupLostError as problem:
                self._learning = None
                if self._at == self._home.starts:  # else it was replaced for another member
                    self._home.replace(problem)


def learn_dealt(learners: Sequence[Learner], batches: Sequence[Unroll]) -> None:
    """Like `learn` for every learner with its batch, concurrently if they are in several processes."""
    pairs = list(zip(learners, batches, strict=True))
    for learner, batch in pairs:
        if isinstance(learner, RemoteLearner):
            learner.begin(batch)
    for learner, batch in pairs:
        if not isinstance(learner, RemoteLearner):
            learner.learn(batch)
    for learner, _ in pairs:
        if isinstance(learner, RemoteLearner):
            learner.finish()
