"""The training loop: pull a batch, let its member learn from it, publish the weights; report and save now and then."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ...actors.pool import ActorPool, ActorStateError
from ...actors.unroll import Unroll, join
from ...learners import checkpoints
from .config import RunConfig, to_dict
from .evaluation import Evaluator
from .member import Member
from .run_directory import RunDirectory

if TYPE_CHECKING:
    from ..population.host import PopulationHost  # a run without one is spared a second of importing
    from .mirror import Mirror

Report = Callable[[int, dict[str, float] | None], None]
"""Called with the steps of all members after every update, and with the metrics whenever a row of them is written."""


FINISH_SECONDS = 20.0
"""In which a synchronous batch that is under way at a stop must be complete to be learnt from."""


class StopFlag:
    """Turns a signal into a request to stop after the current update; a second SIGINT interrupts at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.reason = ""

    def __enter__(self) -> "StopFlag":
        self._previous = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def renew(self) -> None:
        """Take the signals over again, after a library has installed handlers of its own."""
        for number in self.SIGNALS:
            signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name


class Trainer:
    """One run in progress: members fed by a shared pool of actors, with metrics and checkpoints.

    Args:
        config: the run's configuration.
        members: the learners; one, or those of a population.
        pool: answers with unrolls.
        directory: where checkpoints go.
        report: shows metrics to a person.
        warn: shows a warning to a person.
        population: lets the members learn from each other; None where there is one.
        mirror: copies checkpoints to another place.
    """

    def __init__(
        self,
        config: RunConfig,
        members: Sequence[Member],
        pool: ActorPool,
        directory: RunDirectory,
        report: Report,
        warn: Callable[[str], None],
        population: "PopulationHost | None" = None,
        mirror: "Mirror | None" = None,
    ) -> None:
        self.config, self.members, self.pool, self.population = config, members, pool, population
        self.directory, self.report, self.warn, self.mirror = directory, report, warn, mirror
        self.best: tuple[float, int] | None = None
        """Mean return and step of the best checkpoint so far."""
        self.evaluator = Evaluator(config) if config.eval_every else None
        self.lock = threading.RLock()
        """Held while the learner computes and a checkpoint is written: what others may not come between."""
        self.rescuing = False
        """Whether the actors may no longer be asked for anything."""
        self._warned: set[str] = set()
        self._waited = 0.0
        self._saved_at, self._saved_step = time.monotonic(), self.steps

    @property
    def steps(self) -> int:
        """Environment steps that all members have learnt from together."""
        return sum(member.steps for member in self.members)

    def run(self, stop: StopFlag) -> str:
        """Train until all members are done, time is up or `stop` is set; returns why, after a last checkpoint."""
        deadline = time.monotonic() + 60 * self.config.time_limit if self.config.time_limit else float("inf")
        for member in self.members:
            self._publish(member)
        try:
            while not (reason := self._reason_to_stop(stop, deadline)):
                self.update()
                due = time.monotonic() - self._saved_at >= self.config.checkpoint_every and self.is_new
                if due and not self.pool.gathering:  # the actors' state belongs to it, and can be had between batches
                    self.save()
            self._finish_gathering()
        finally:
            # Also after an actor failed once too often: what was learnt is kept.
            if self.is_new:
                self.save()
        return reason

    def update(self) -> None:
        """One member's next batch, update and weights; nothing if the actors let wait (look at the clock then)."""
        started = time.perf_counter()
        found = self._next_synchronous() if self.config.synchronous else self._next_ready()
        self._waited += time.perf_counter() - started
        if found is None:
            return
        member, batch = found
        before = member.steps
        member.accumulator.time("queue_wait").seconds += self._waited
        self._waited = 0.0
        with member.accumulator.time("learner_busy"):
            with self.lock:
                member.learn(batch, self.population.metrics(member) if self.population else None)
            self._publish(member, len(batch.weights_version))
        if self.population:
            with self.lock:
                self.population.record(member, batch.episodes.numpy())
                copied = self.population.look()
            for each in copied:
                self._publish(each)
        if self.evaluator:
            with self.lock:
                self.evaluator.look(member, before)
        self.report(self.steps, None)
        if member.due():
            self._log(member)

    def _finish_gathering(self) -> None:
        """Learn from a batch that the actors have begun, since their state can be saved between batches only."""
        deadline = time.monotonic() + FINISH_SECONDS
        while self.pool.gathering and time.monotonic() < deadline:
            self.update()

    def save(self) -> None:
        """Write a checkpoint; a full disk is a warning, not the end of the run."""
        with self.lock:
            self._save()

    def _save(self) -> None:
        self._saved_at, self._saved_step = time.monotonic(), self.steps
        step = self.steps
        means = [mean for member in self.members if (mean := member.score()) is not None]
        if means and (self.best is None or max(means) >= self.best[0]):
            self.best = (max(means), step)
        folder = self.directory.checkpoints
        try:
            checkpoints.save(folder, step, self.state())
            checkpoints.prune(
                folder, self.config.keep_checkpoints, self.best and checkpoints.path_of(folder, self.best[1])
            )
        except checkpoints.CheckpointError as problem:
            self.warn(f"no checkpoint at step {step:,}: {problem}")
            return
        if self.mirror:
            self.mirror.push(checkpoints.path_of(folder, step))

    def state(self) -> dict[str, Any]:
        """Everything that a continued run depends on."""
        state: dict[str, Any] = {
            "config": to_dict(self.config),
            "members": [member.state_dict() for member in self.members],
            "population": self.population.state_dict() if self.population else None,
            "best": self.best,
            "torch_rng": torch.get_rng_state(),
        }
        if self.config.synchronous and not self.rescuing:
            try:
                state["actors"] = self.pool.save()
            except ActorStateError as problem:
                self._warn_once(f"checkpoints are without the actors' state ({problem}): resumed, they begin anew")
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved)
        if self.population:
            self.population.load_state_dict(state["population"])
        self.best = state["best"]
        self._saved_step = self.steps
        if "actors" in state and len(state["actors"]) == self.pool.num_actors:
            self.pool.restore(state["actors"])
        elif "actors" in state:
            self.warn(
                f"{self.pool.num_actors} actors instead of {len(state['actors'])}: environments start new episodes, "
                "so the numbers will not be those of the uninterrupted run"
            )
        torch.set_rng_state(state["torch_rng"])  # last, for actors that were made anew have drawn their first weights

    @property
    def is_new(self) -> bool:
        """Whether there is anything that no checkpoint holds."""
        return self.steps > self._saved_step

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self.warn(message)

    def _next_ready(self) -> tuple[Member, Unroll] | None:
        """The first batch that is full, of whichever member; None if no unroll came for a while."""
        while True:
            for member in self.members:
                if not member.done and (batch := member.batcher.take()) is not None:
                    return member, batch
            unroll = self.pool.next()
            if unroll is None:
                return None
            self.members[unroll.member].receive(unroll)

    def _next_synchronous(self) -> tuple[Member, Unroll] | None:
        """One unroll from every actor for the member that has made the fewest updates; None if not all came."""
        member = min((member for member in self.members if not member.done), key=lambda each: each.learner.updates)
        unrolls = self.pool.gather(member.number)
        if unrolls is None:
            return None
        for unroll in unrolls:
            member.note(unroll)
        return member, join(unrolls)

    def _publish(self, member: Member, learnt: int = 0) -> None:
        """Give the actors a member's newest weights; one that is done needs none."""
        if member.done:
            self.pool.retire(member.number)
        else:
            self.pool.publish(member.weights(), learnt)

    def _log(self, member: Member) -> None:
        """Write and show a member's metrics, and those of all members together when the last one has written."""
        metrics = member.log(self.pool.num_actors, self.pool.failures, self.pool.stored_bytes())
        if self.population is None:
            self.report(self.steps, metrics)
        elif row := self.population.log(member, metrics):
            self.report(self.steps, row)

    def _reason_to_stop(self, stop: StopFlag, deadline: float) -> str:
        if all(member.done for member in self.members):
            return "done"
        if stop.reason:
            return stop.reason
        return "time limit" if time.monotonic() >= deadline else ""
