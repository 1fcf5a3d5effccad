"""Learners of a population's members in other processes: each learns from whole batches, without sums of gradients.

The run's process has a copy of every member's weights and decides about updates; a member's optimizer is in its
assigned process. Unrolls go from the actors straight to that process, or, in synchronous mode, batches from the run's
process. Results equal those of a learner in the run's process, bit for bit.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError

from ...actors.remote.wire import Parcel, pack, share_tensors, unpack
from ...actors.unroll import Stored, Unroll, join, some_environments
from ...agents.agent import Agent
from ...agents.process import prepare_process
from ...agents.threads import use_threads
from ...agents.values import flatten, load
from ..config import LearnerConfig
from ..group import LearnerLossError
from ..learner import Learner
from .worker import claims, on_cpu


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

    def machine(self) -> str:
        """Return the address of this process's machine."""
        return ray.util.get_node_ip_address()

    def learn(self, member: int, settings: Sequence[str], parts: Sequence[slice], *parcels: Parcel | bytes) -> Answer:
        """Run one update of a member from these environments of each parcel; report the values of these settings."""
        use_threads(self._threads)
        learner = self._learners[member]
        unrolls = zip(map(unpack, parcels), parts, strict=True)
        learner.learn(join([some_environments(unroll, part) for unroll, part in unrolls]))
        metrics, effective = learner.read(), {name: learner.effective(name) for name in settings}
        facts = learner.updates, learner.steps, learner.skipped, learner.cause, effective
        return Answer(flatten(learner.agent), metrics, *facts)

    def call(self, member: int, name: str, *arguments: Any) -> Any:
        """Call a method of a member's learner."""
        if member not in self._learners:
            self._learners[member] = self._make_learner()
        return on_cpu(getattr(self._learners[member], name)(*arguments))


class RemoteLearner(Learner):
    """Learner whose updates run in another process.

    Args:
        process: Ray's handle of its MemberProcess.
        member: index of the member in that process.
        claim: kept as long as this learner (see gpus.py).
    """

    def __init__(
        self, agent: Agent, config: LearnerConfig, total_steps: int, process: Any, member: int, claim: Any = None
    ) -> None:
        self._process, self._member, self._claim = process, member, claim
        super().__init__(agent, config, total_steps)
        self._learning: Any = None
        self._effective: dict[str, float] = {}
        """Values of settings in the other process since the last update or change."""
        self.load_state_dict(super().state_dict())
        self.reconfigure(config)

    def send(self, batch: Unroll) -> None:
        """Do nothing: `begin` sends the batch to the other process."""

    def learn(self, batch: Unroll) -> None:
        self.begin(batch)
        self.finish()

    def begin(self, batch: Unroll) -> None:
        """Make the other process learn from a batch, whose unrolls it fetches if they are in Ray's store."""
        stored = batch.stored or (Stored(pack(batch), 0, len(batch.weights_version)),)
        parts = [slice(each.first, each.end) for each in stored]
        self._learning = self._process.learn.remote(
            self._member, list(self._effective), parts, *(each.parcel for each in stored)
        )

    def finish(self) -> None:
        """Wait for the update, and copy its results."""
        result: Answer = self._get(self._learning)
        load(self.agent, result.weights)
        self.updates, self.steps, self._skipped, self.cause, self._effective = result[2:]
        self._read += result.metrics

    def reconfigure(self, config: LearnerConfig) -> None:
        super().reconfigure(config)
        self._change("reconfigure", config)

    def effective(self, setting: str) -> float:
        if setting not in self._effective:
            self._effective[setting] = self._call("effective", setting)
        return self._effective[setting]

    def take_over(self, agent: dict[str, Any], optimizer: dict[str, Any]) -> None:
        super().take_over(agent, optimizer)
        self._change("take_over", agent, optimizer)

    def state_dict(self) -> dict[str, Any]:
        return self._call("state_dict")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._change("load_state_dict", state)

    def _change(self, name: str, *arguments: Any) -> None:
        self._effective = {}
        self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._get(self._process.call.remote(self._member, name, *map(on_cpu, arguments)))

    def _get(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except RayTaskError as problem:
            raise LearnerLossError(f"the learner of member {self._member} failed:\n{problem}") from problem
        except RayError as problem:
            lines = str(problem).splitlines() or [type(problem).__name__]
            raise LearnerLossError(f"the learner of member {self._member} is lost ({lines[0]})") from problem


def member_processes(
    number: int, make_learner: Callable[[], Learner], device: torch.device, threads: int = 1
) -> Sequence[Any]:
    """Start processes with a device of this type each; return Ray's handles of them."""
    made: Any = ray.remote(**claims(device))(MemberProcess)
    return [made.remote(make_learner, os.getcwd(), threads) for _ in range(number)]


def machines(processes: Sequence[Any]) -> list[str]:
    """Return the addresses of this process's machine and of those of other processes."""
    return [ray.util.get_node_ip_address(), *ray.get([process.machine.remote() for process in processes])]


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
