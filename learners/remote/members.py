"""Learners of a population's members in other processes, without exchange of gradients.

The run's process has a copy of every member's weights and optimizer, and schedules updates. Actors send unrolls
directly to the assigned process; in synchronous mode, the run's process sends batches. Results equal those of a learner
in the run's process, bit for bit, which repeats interrupted updates and trains the members of a lost process.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from ...actors.remote.slot import pack, share_tensors, unpack
from ...actors.unroll import Stored, Unroll, join, some_environments
from ...agents.agent import Agent
from ...agents.values import flatten, load
from ..config import LearnerConfig
from ..group import LOOK_SECONDS, GroupLostError
from ..learner import Learner
from .processes import PATIENCE, ProcessHandle, RemoteProcess, answer_of, claims, on_cpu

INLINE_BYTES = 90_000  # Size of a result that Ray sends with the response to a call, not by way of its stores
MOST_PIECES = 90  # Pieces of a result that Ray sends with one response, which is limited to 10 MB
FETCH_SECONDS = 5.0  # Seconds within which an unroll must arrive; its machine may be unreachable


class MemberProcess(RemoteProcess):
    """Ray actor with the learners of some members; `make_learner` creates one, whose state is set later."""

    def __init__(self, make_learner: Callable[[], Learner], directory: str) -> None:
        super().__init__(directory)
        share_tensors()
        self._make_learner = make_learner
        self._learners: dict[int, Learner] = {}

    def learn(
        self, member: int, state: tuple[dict[str, Any], LearnerConfig] | None, stored: Sequence[Stored], pieces: int
    ) -> Any:
        """Run one update of a member, starting from `state` unless it is None. Return pickled weights, metrics,
        counters and packed optimizer state in `pieces` parts; a pickled None, without update, if unrolls are lost."""
        if state is not None:
            self._learners[member] = self._make_learner()
            self._learners[member].load_state_dict(state[0])
            self._learners[member].reconfigure(state[1])
        batch = batch_of(stored)
        if batch is None:
            return cut(pickle.dumps(None), pieces)
        learner = self._learners[member]
        learner.learn(batch)
        metrics, optimizer = learner.read(), pack(learner.optimizer.state_dict())
        answer = flatten(learner.agent), metrics, learner.updates, learner.steps, learner.skipped, optimizer
        return cut(pickle.dumps(answer, protocol=5), pieces)


def batch_of(stored: Sequence[Stored]) -> Unroll | None:
    """Join parts of unrolls, fetching those in Ray's store; None if one is lost."""
    parts: list[Unroll] = []
    for parcel, first, end in stored:
        try:
            value: Any = ray.get(parcel, timeout=FETCH_SECONDS) if isinstance(parcel, ray.ObjectRef) else parcel
        except RayError:
            return None
        parts.append(some_environments(unpack(value), slice(first, end)))
    return join(parts)


class MemberHome(ProcessHandle):
    """Process with the learners of some members. `rank` is its index among the run's learners, `device` that of the
    run's process, which has index 0."""

    def __init__(
        self, rank: int, make_learner: Callable[[], Learner], device: torch.device, report: Callable[[str], None]
    ) -> None:
        super().__init__(MemberProcess, rank, claims(device), make_learner, os.getcwd())
        self.report, self.lost = report, False

    def get(self, pieces: list[Any]) -> bytes:
        """Return a response. Raises GroupLostError as soon as the process is lost."""
        while not ray.wait(pieces, timeout=LOOK_SECONDS)[0]:
            self.check()
        return b"".join(answer_of(pieces, PATIENCE))

    def lose(self, problem: GroupLostError) -> None:
        if not self.lost:
            self.lost = True
            self.report(f"{problem}: learner 0 continues with the members of learner {self.rank}, until --resume")
            ray.kill(self.handle)


class RemoteLearner(Learner):
    """Learner of a member whose updates run in another process; keeps a GPU claim as long as it exists."""

    def __init__(
        self, agent: Agent, config: LearnerConfig, total_steps: int, home: MemberHome, member: int, claim: Any = None
    ) -> None:
        self._home, self._member, self._claim = home, member, claim
        super().__init__(agent, config, total_steps)
        self._sent = False  # Whether the process has this learner's newest state
        self._batch: Sequence[Stored] = ()
        self._learning: Any = None
        self._pieces = 1  # Number of pieces of the next response
        self._newest = self.optimizer.state_dict()  # Newest state of the optimizer

    def send(self, batch: Unroll) -> None:
        """Do nothing: `begin` sends the batch to the other process."""

    def learn(self, batch: Unroll) -> None:
        self.begin(batch)
        self.finish()

    def begin(self, batch: Unroll) -> None:
        """Start learning from a batch in the other process, unless it is lost."""
        self._batch = batch.stored or (Stored(pack(batch), 0, len(batch.weights_version)),)
        self._learning = None
        if not self._home.lost:
            state = None if self._sent else (on_cpu(self.state_dict()), self.config)
            self._sent = True
            learn = self._home.handle.learn.options(num_returns=self._pieces)
            pieces = learn.remote(self._member, state, self._batch, self._pieces)
            self._learning = [pieces] if self._pieces == 1 else pieces

    def finish(self) -> None:
        """Wait for the update and copy its results, or run the update here; skip it if unrolls are lost."""
        try:
            updated = self._learn_here() if self._learning is None else self._copy(self._home.get(self._learning))
        except GroupLostError as problem:
            self._home.lose(problem)
            updated = self._learn_here()
        self._batch, self._learning = (), None
        if not updated:
            self._home.report(f"unrolls of member {self._member} were lost with their machine and are not used")

    def _copy(self, response: bytes) -> bool:
        result: Any = pickle.loads(response)
        if result is not None:
            weights, metrics, self.updates, self.steps, self._skipped, optimizer = result
            load(self.agent, weights)
            pieces = -(-len(response) // INLINE_BYTES)
            self._newest, self._pieces = unpack(optimizer), pieces if pieces <= MOST_PIECES else 1
            self._read += metrics
        return result is not None

    def _learn_here(self) -> bool:
        batch = batch_of(self._batch)
        if batch is not None:
            self.take_over(self.agent.state_dict(), self._newest)
            super().learn(batch)
            self._newest = self.optimizer.state_dict()
        return batch is not None

    def reconfigure(self, config: LearnerConfig) -> None:
        super().reconfigure(config)
        self._sent = False

    def take_over(self, agent: dict[str, Any], optimizer: dict[str, Any]) -> None:
        super().take_over(agent, optimizer)
        self._newest, self._sent = self.optimizer.state_dict(), False

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"optimizer": self._newest}


def learn_dealt(learners: Sequence[Learner], batches: Sequence[Unroll]) -> None:
    """Call `learn` on every learner with its batch, concurrently if the learners are in several processes."""
    pairs = list(zip(learners, batches, strict=True))
    for learner, batch in pairs:
        if isinstance(learner, RemoteLearner):
            learner.begin(batch)
    for learner, batch in pairs:
        if not isinstance(learner, RemoteLearner):
            learner.learn(batch)
    for learner in learners:
        if isinstance(learner, RemoteLearner):
            learner.finish()


def cut(content: bytes, pieces: int) -> Any:
    """Split bytes into this many pieces, the results of a call."""
    size = -(-len(content) // pieces)
    return content if pieces == 1 else [content[size * part : size * (part + 1)] for part in range(pieces)]
