"""The training loop: get a batch, update its member, publish the weights; report and save at intervals."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...actors.pool import ActorPool, ActorStateError
from ...actors.unroll import Unroll, join
from ...base.errors import EngramError
from ...base.processes import StopFlag
from ...learners import checkpoints
from ..config.plain import to_dict
from ..config.run_config import RunConfig
from ..metrics.evaluator import Evaluator, StopRequestedError, best_now
from ..metrics.member import Member
from ..metrics.panel import Panel
from ..runs.directory import RunDirectory
from ..runs.saved import Best
from .callbacks import CHECKPOINT, ROW, UPDATE, Callbacks, Update

if TYPE_CHECKING:
    from ..population.host import PopulationHost
    from ..runs.mirror import Mirror

FINISH_SECONDS = 4.0  # Seconds after a stop request in which a synchronous batch can still complete and be learned from

Look = Callable[[Member, int, Callable[[], None]], None]
"""Called after an update: (member, its steps before the update, function to call after each environment step)."""


class Trainer:
    """A run in progress: members that learn from a shared pool of actors, with metrics and checkpoints. `looks` record
    recurrent states or videos of a member between two updates."""

    def __init__(
        self,
        config: RunConfig,
        members: Sequence[Member],
        pool: ActorPool,
        directory: RunDirectory,
        panel: Panel,
        population: "PopulationHost | None" = None,
        mirror: "Mirror | None" = None,
        callbacks: Callbacks | None = None,
        looks: Sequence[Look] = (),
    ) -> None:
        self.config, self.members, self.pool, self.population = config, members, pool, population
        self.directory, self.panel, self.mirror = directory, panel, mirror
        self.callbacks = callbacks or Callbacks()
        self.best: Best | None = None  # The best checkpoint so far
        self.kept = checkpoints.Kept(directory.checkpoints)
        self._looks = [*([Evaluator(config).look] if config.eval_every else []), *looks]
        self.lock = threading.RLock()  # Held during updates and checkpoint writes, which no other thread may interrupt
        self.rescuing = False  # Whether the actors accept no more requests
        self._stop, self._looked = StopFlag(()), 0  # Steps of environments in evaluations
        self._waited = 0.0
        self._ready: dict[int, Unroll] = {}  # Batches for the next update, by member
        for recorded in filter(None, [member.learner.recorded for member in members]):
            recorded.alone = pool.still
        device, together = members[0].learner.device, config.pbt.together
        by_itself = device.type == "cuda" and not config.learner.cuda_graph
        self._dealt = config.num_learners > 1 and bool(population)  # Members learn concurrently, in several processes
        self._synchronous = config.synchronous
        self._together = together == "on" or (together == "auto" and by_itself) or (self._dealt and self._synchronous)
        self._between = True  # Whether no update is in progress, so that a run can resume from the state
        self._saved_at, self._saved_step = time.monotonic(), self.steps

    @property
    def steps(self) -> int:
        """Environment steps that all members have learned from together."""
        return sum(member.steps for member in self.members)

    @property
    def progress(self) -> int:
        """Counter that changes with updates and environment steps, in training and in evaluations."""
        return self.steps + self._looked + self.pool.progress

    @property
    def unsaved(self) -> int:
        return self.steps - self._saved_step

    def run(self, stop: StopFlag) -> str:
        """Train until all members are done, time is up or `stop` is set; return why, after a final checkpoint. The time
        limit excludes starting actors and compiling environments."""
        deadline, first, self._stop = math.inf, self.steps, stop
        for member in self.members:
            self._publish(member)
        try:
            while not (reason := self._reason_to_stop(stop, deadline)):
                self.update()
                self.panel.update(self.steps, None)
                if self.config.time_limit and deadline == math.inf and self.steps > first:
                    deadline = time.monotonic() + 60 * self.config.time_limit
                due = time.monotonic() - self._saved_at >= self.config.checkpoint_every
                new_best = self.config.eval_every and best_now(self.best, self.members, self.steps) is not self.best
                # A checkpoint includes the actors' state, which can be saved only between batches.
                if (due or new_best) and self.unsaved and not self.pool.gathering:
                    self.save()
            latest = time.monotonic() + FINISH_SECONDS
            while self.pool.gathering and time.monotonic() < latest:
                self.update()
        finally:
            # Also after too many failures of an actor: save finished updates, but not a partial one.
            if self.unsaved and self._between:
                self.save()
        return reason

    def update(self) -> None:
        """Run the next update of a member, or of all together; do nothing if no batch is ready yet."""
        started = time.perf_counter()
        complete = self._synchronous_batches() if self._synchronous else self._ready_batches()
        self._waited += time.perf_counter() - started
        if not complete:
            return
        ready, self._ready = [(self.members[number], batch) for number, batch in self._ready.items()], {}
        before, first = [member.steps for member, _ in ready], ready[0][0]
        first.accumulator.add_seconds("queue_wait", self._waited)
        self._waited, self._between = 0.0, False
        began = time.perf_counter()
        with self.lock:
            self._learn(ready)
        for member, batch in ready:
            self._publish(member, len(batch.weights_version))
        first.accumulator.add_seconds("learner_busy", time.perf_counter() - began)
        if self.population:
            with self.lock:
                for member, batch in ready:
                    self.population.record(member, batch.episodes.numpy())
                copied = self.population.look()
            for number in copied:
                self._publish(self.members[number])
        self._between = True
        for member, batch in ready if self.callbacks.on_update else ():
            self._call(UPDATE, Update(member.steps, member.number, member.learner, batch, self.directory.path), member)
        for (member, _), steps in zip(ready, before, strict=True):
            self._look(member, steps)
            while member.notices:
                self.panel.message(member.notices.pop(), once=True)
        for member, _ in ready:
            if member.due():
                self._log(member)

    def _call(self, name: str, argument: Any, member: Member | None = None) -> None:
        """Call a callback; True stops the run like a signal, and the next row contains the means of returned metrics.
        Under the lock, the run does not count as stalled."""
        if (function := getattr(self.callbacks, name)) is None:
            return
        with self.lock:
            result = function(argument)
            if member is not None and isinstance(result, Mapping):
                member.accumulator.add_metrics({str(key): float(value) for key, value in result.items()})
        if isinstance(result, bool | np.bool_) and result:
            self._stop.reason = self._stop.reason or name

    def _look(self, member: Member, before: int) -> None:
        """Evaluate a member and record its recurrent state if either is due; a requested stop ends both. The lock is
        not held, since the state can be saved and environments may be slow or hang."""
        for look in self._looks:
            if not self._stop.reason:
                with suppress(StopRequestedError):
                    look(member, before, self._at_step)

    def _at_step(self) -> None:
        self._looked += 1
        if self._stop.reason:
            raise StopRequestedError

    def _learn(self, ready: Sequence[tuple[Member, Unroll]]) -> None:
        others = [self.population.metrics(member) if self.population else None for member, _ in ready]
        before = [member.updates for member, _ in ready]
        learners, batches = [member.learner for member, _ in ready], [batch for _, batch in ready]
        if team := ready[0][0].team:
            batches = [team.learn(learners[0], batches[0])]
        elif len(ready) == 1:
            learners[0].learn(batches[0])
        else:
            if self.config.num_learners > 1:  # imported late, since they import Ray or torch.func
                from ...learners.remote.members import learn_dealt as learn_all
            else:
                from ...learners.population.vectorized import learn_together as learn_all
            learn_all(learners, batches)
        for (member, _), batch, extra, updates in zip(ready, batches, others, before, strict=True):
            if member.updates > updates:  # otherwise the batch was lost with its machine
                member.note_update(batch, extra)
            member.prefetch()

    def save(self) -> None:
        """Write a checkpoint; a full disk causes a warning and does not end the run."""
        with self.lock:
            self._saved_at = time.monotonic()
            step, folder = self.steps, self.directory.checkpoints
            best = best_now(self.best, self.members, step)
            try:
                path = checkpoints.save(folder, step, self.state(best))
            except EngramError as problem:
                self.panel.message(f"no checkpoint at step {step:,}: {problem}")
                return
            # Only after the write: until then, the previous best checkpoint must not be removed.
            self.best, self._saved_step = best, step
            self.kept.add(path)
            try:
                self.kept.prune(self.config.keep_checkpoints, best and checkpoints.path_of(folder, best.step))
            except checkpoints.CheckpointError as problem:
                self.panel.message(str(problem))
            if self.mirror:
                self.mirror.push(path)
            if not self.rescuing:
                self._call(CHECKPOINT, path)

    def state(self, best: Best | None = None) -> dict[str, Any]:
        """Return the full state of the run, to resume from; `best` is its best checkpoint."""
        state: dict[str, Any] = {
            "config": to_dict(self.config),
            "members": [member.state_dict() for member in self.members],
            "population": self.population.state_dict() if self.population else None,
            "best": best,
            "torch_rng": torch.get_rng_state(),
        }
        if self._synchronous and not self.rescuing:
            try:
                state["actors"] = self.pool.save()
            except ActorStateError as problem:
                lack = f"checkpoints lack the actors' state ({problem}): a resumed run starts new episodes"
                self.panel.message(lack, once=True)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved)
        if self.population:
            self.population.load_state_dict(state["population"])
        self.best = state["best"]
        self._saved_step = self.steps
        if "actors" in state and len(state["actors"]) == self.pool.num_actors:
            self.pool.restore(state["actors"])
        else:
            for member in self.members:
                member.begin_episodes()
            if "actors" in state:
                differs = "environments start new episodes, so results will differ from those of the uninterrupted run"
                self.panel.message(f"{self.pool.num_actors} actors instead of {len(state['actors'])}: {differs}")
        torch.set_rng_state(state["torch_rng"])  # last, since recreated actors have sampled initial weights

    def _waiting(self) -> list[Member]:
        if self._ready and not self._together:
            return []
        return [member for member in self.members if not member.done and member.number not in self._ready]

    def _ready_batches(self) -> bool:
        """Collect full batches of any member; False if no unroll arrived for a while."""
        while True:
            while self._dealt and (unroll := self.pool.arrived()) is not None:
                self.members[unroll.member].receive(unroll)  # so that as many members as possible learn together
            for member in self._waiting():
                if (batch := member.take()) is not None:
                    self._ready[member.number] = batch
                    if not (self._together or self._dealt):
                        return True
            complete = not self._waiting()
            if complete or (unroll := self.pool.next()) is None:
                return complete
            self.members[unroll.member].receive(unroll)

    def _synchronous_batches(self) -> bool:
        """Collect one unroll from every actor for the member with the fewest updates; False if not all arrived."""
        while waiting := self._waiting():
            member = min(waiting, key=lambda member: member.learner.updates)
            unrolls = self.pool.gather(member.number)
            if unrolls is None:
                return False
            for unroll in unrolls:
                member.accumulator.add_unroll(unroll.seconds)
            self._ready[member.number] = join(unrolls)
        return True

    def _publish(self, member: Member, learned: int = 0) -> None:
        if member.done:
            self.pool.retire(member.number)
        else:
            self.pool.publish(member.weights(self.pool), learned)

    def _log(self, member: Member) -> None:
        """Write and show a member's metrics, and those of all members together when the last member has written."""
        metrics = member.log(self.pool.num_actors, self.pool.failures, self.pool.stored_bytes())
        if row := self.population.log(member, metrics) if self.population else metrics:
            self.panel.update(self.steps, row)
            self._call(ROW, {"step": float(self.steps), **row})

    def _reason_to_stop(self, stop: StopFlag, deadline: float) -> str:
        if all(member.done for member in self.members):
            return "done"
        return stop.reason or ("time limit" if time.monotonic() >= deadline else "")
