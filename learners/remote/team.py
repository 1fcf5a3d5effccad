"""All learners of a run, which appear to the run's process as one pool of actors and one update.

Every learner pulls unrolls from its own actors; all but this process, rank 0, do so on request. If a learner dies or
hangs, the others continue from the state of rank 0, with the batch of the interrupted update.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from ...actors.pool import ActorFailureError, ActorPool, ActorStateError
from ...actors.unroll import Unroll
from ...agents.values import Weights
from ..group import LOOK_SECONDS, GroupLostError, LearnerLossError, Share
from ..learner import Learner
from . import processes
from .processes import PATIENCE, LearnerProcess, MakePool, ProcessHandle, answer_of

CLOSE_SECONDS = 5.0  # Seconds within which the other learners must close their environments
MOST_LOSSES = 10  # Consecutive failures of an update that a run survives; the next one ends it


class _Worker(ProcessHandle):
    collecting: Any = None  # Ray's reference to its next status; None while no status is expected
    batch: Unroll | None = None  # `header` of its complete batch; None while there is none
    failures = progress = 0


class Team(ActorPool):
    """All learners. Methods without a docstring act as in ActorPool, on the actors of all learners.

    `pool` has this process's actors. `make_pool` returns a function that creates the actors of a share. Raises
    EngramError if `learner_device`, of this process's learner, is a GPU that Ray has assigned to another process.
    """

    def __init__(
        self,
        pool: ActorPool,
        shares: Sequence[Share],
        make_learner: Callable[[], Learner],
        make_pool: Callable[[Share], MakePool],
        synchronous: bool,
        report: Callable[[str], None],
        learner_device: torch.device,
    ) -> None:
        self.pool, self.device, self.still = pool, torch.device("cpu"), pool.still
        self._shares, self._synchronous, self._report = shares, synchronous, report
        self._unrolls: list[Unroll] | None = None
        self._header: Weights | None = None
        self._due = self._held = False
        self._learned = self._groups = self._lost = self._losses = 0
        self._learner: Learner | None = None
        self.seconds: list[float] = []  # Wall time of acting per unroll of the other learners; the caller empties it
        self._reserved, claim = processes.reserve(learner_device), processes.claims(learner_device)
        self._workers: list[_Worker] = []
        for rank, share in enumerate(shares[1:], 1):
            arguments = make_learner, make_pool(share), share.environments, synchronous, os.getcwd()
            self._workers.append(_Worker(LearnerProcess, rank, claim, *arguments))
        for worker in self._workers:
            worker.wait()

    @property
    def num_actors(self) -> int:
        return sum(self._shares[rank].actors for rank in self._ranks)

    @property
    def failures(self) -> int:
        return self.pool.failures + self._lost + sum(worker.failures for worker in self._workers)

    @property
    def progress(self) -> int:
        return self.pool.progress + sum(worker.progress for worker in self._workers)

    @property
    def gathering(self) -> bool:
        under_way = any(worker.collecting is not None or worker.batch for worker in self._workers)
        return self.pool.gathering or (self._synchronous and (self._unrolls is not None or under_way))

    def stored_bytes(self) -> int | None:
        return self.pool.stored_bytes()

    def publish(self, weights: Weights, learned: int = 0) -> None:
        self.pool.publish(weights, learned)
        self._header, self._due, self._learned = weights._replace(values=weights.values[:0]), True, learned
        if not self._synchronous:
            self._begin()

    def retire(self, member: int) -> None:
        self.pool.retire(member)

    def next(self) -> Unroll | None:
        """Return the next unroll of this process's actors; None if a complete batch waits for other learners."""
        self._begin()
        held, self._held = self._held, False
        return None if held else self.pool.next()

    def gather(self, member: int = 0) -> list[Unroll] | None:
        """Return one unroll from each of this process's actors, once all learners have theirs."""
        self._begin()
        self._unrolls = self._unrolls or self.pool.gather(member)
        if self._unrolls is None or not self.ready():
            return None
        unrolls, self._unrolls = self._unrolls, None
        return unrolls

    def save(self) -> list[Any]:
        if self.gathering:
            raise ActorStateError("unrolls are in progress")
        if self._lost:
            raise ActorStateError("a learner is lost")
        saving = [worker.handle.save.remote() for worker in self._workers]
        states = self.pool.save()
        try:
            return [*states, *(state for others in self._answers(saving) for state in others)]
        except (GroupLostError, ActorFailureError) as problem:
            raise ActorStateError(str(problem)) from problem

    def restore(self, saved: list[Any]) -> None:
        parts = [saved[share.first_actor : share.first_actor + share.actors] for share in self._shares]
        restoring = [worker.handle.restore.remote(parts[worker.rank]) for worker in self._workers]
        self.pool.restore(parts[0])
        self._answers(restoring)

    def close(self) -> None:
        closing = [worker.handle.close.remote() for worker in self._workers]
        try:
            self.pool.close()
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            for worker in self._workers:
                ray.kill(worker.handle)
            if self._learner is not None:
                self._learner.group.close()

    def _begin(self) -> None:
        """Start collecting the other learners' next batches with the newest weights."""
        if self._due:
            self._due = False
            for worker in self._workers:
                learned = self._shares[worker.rank].environments if self._learned else 0
                worker.collecting = worker.handle.collect.remote(self._header, learned)

    def ready(self) -> bool:
        """Whether all other learners have a complete batch; waits for a limited time."""
        deadline = time.monotonic() + PATIENCE
        while waiting := [worker for worker in self._workers if worker.batch is None]:
            left = deadline - time.monotonic()
            if left <= 0:
                self._held = True
                return False
            done, _ = ray.wait([worker.collecting for worker in waiting], timeout=min(left, 0.5))
            try:
                for worker in waiting:
                    if worker.collecting in done:
                        self._record(worker, answer_of(worker.collecting, PATIENCE))
                self._watch()
            except GroupLostError as problem:
                self._rebuild(problem)
        return True

    def _record(self, worker: _Worker, status: Any) -> None:
        """Record the result of `LearnerProcess.collect`."""
        worker.batch, worker.failures, worker.progress, messages, seconds = status
        worker.collecting = None if worker.batch else worker.handle.collect.remote(None, 0)
        self.seconds += seconds
        for message in messages:
            self._report(message)

    def learn(self, learner: Learner, batch: Unroll) -> Unroll:
        """Run one update of all learners; return the batch with the weight versions and episodes of all shares."""
        before, hashes, parts = learner.updates, list[str](), [batch]
        while learner.updates == before:
            if not self.ready():
                continue
            parts = [batch, *(worker.batch for worker in self._workers if worker.batch)]
            learning = [worker.handle.learn.remote() for worker in self._workers]
            try:
                learner.learn(batch)
                hashes = [processes.digest(learner), *self._answers(learning)]
            except GroupLostError as problem:
                self._rebuild(problem)
        for rank, other in enumerate(hashes):
            if other != hashes[0]:
                raise LearnerLossError(
                    f"learner {rank} has different weights from learner 0 after {learner.updates:,} updates: a custom "
                    "part of the agent changes with the observations of its share; use --num-learners 1"
                )
        self._losses = 0
        for worker in self._workers:
            worker.batch = None
        versions = torch.cat([part.weights_version for part in parts])
        return batch._replace(weights_version=versions, episodes=torch.cat([part.episodes for part in parts]))

    @property
    def _ranks(self) -> list[int]:
        """Ranks of the learners in the run; those in the group count from 0 without gaps."""
        return [0, *(worker.rank for worker in self._workers)]

    def connect(self, learner: Learner) -> None:
        """Join all learners into one group that continues from this learner's state, without those lost meanwhile."""
        self._learner = learner
        try:
            self._connect(learner)
        except GroupLostError as problem:
            self._rebuild(problem)

    def _connect(self, learner: Learner) -> None:
        self._groups += 1
        learner.group.close()  # an abandoned exchange would occupy the GPU
        state = processes.on_cpu(learner.state_dict())
        learner.take_over(state["agent"], state["optimizer"])  # an interrupted update may have changed it
        widths = [self._shares[rank].environments for rank in self._ranks]
        shared, others = ray.put(state), enumerate(self._workers, 1)
        joining = [worker.handle.join.remote(self._groups, rank, widths, shared) for rank, worker in others]
        try:
            learner.join(processes.connect(self._groups, 0, widths, learner.device, self._watch))
        except RuntimeError as problem:
            raise GroupLostError(str(problem).splitlines()[0]) from problem
        self._answers(joining)
        processes.RayStore(self._groups).remove()

    def _watch(self) -> None:
        """Raise GroupLostError if another learner is dead or has not responded for too long."""
        for worker in self._workers:
            worker.check()

    def _rebuild(self, problem: GroupLostError) -> None:
        """Continue without lost learners in a new group, from this process's state."""
        learner = self._learner
        assert learner is not None, "connect() comes before the first batch"
        self._report(f"{problem}: the group of learners restarts from step {learner.steps:,}; lost ones need --resume")
        while True:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise LearnerLossError(f"learners were lost {self._losses} times in a row; the last time: {problem}")
            for worker in self._lost_workers():
                self._lost += 1
                ray.kill(worker.handle)
                self._workers.remove(worker)
            try:
                self._connect(learner)
                break
            except GroupLostError as another:
                problem = another
        for worker in self._workers:  # one that completed the interrupted update has no batch
            worker.batch, worker.collecting = None, worker.handle.collect.remote(self._header, 0)

    def _answers(self, refs: Sequence[Any]) -> list[Any]:
        """Return the responses of other learners. Raises GroupLostError as soon as a learner is lost."""
        responses, left = dict[Any, Any](), list(refs)
        while left:
            done, left = ray.wait(left, num_returns=len(left), timeout=LOOK_SECONDS)
            responses |= {ref: answer_of(ref, PATIENCE) for ref in done}
            self._watch()
        return [responses[ref] for ref in refs]

    def _lost_workers(self) -> list[_Worker]:
        """Find the learners that do not leave their group within PATIENCE."""
        leaving = {worker.handle.leave.remote(self._groups): worker for worker in self._workers}
        if leaving:
            ray.wait(list(leaving), num_returns=len(leaving), timeout=PATIENCE)
        for ref in list(leaving):
            with suppress(RayError):  # no response, or the error of a process that is lost
                ray.get(ref, timeout=0)
                del leaving[ref]
        return list(leaving.values())
