"""The training loop: pull a batch, learn from it, publish the weights; report and save now and then."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ..actors.pool import ActorPool
from ..actors.unroll import Unroll, join, nbytes
from ..agents.weights import Weights, flatten
from ..learners import checkpoints
from ..learners.batcher import Batcher
from ..learners.learner import Learner
from .config import RunConfig
from .metrics import Accumulator, MetricsWriter
from .run_directory import RunDirectory

Report = Callable[[int, dict[str, float] | None], None]
"""Called with the steps done after every update, and with the metrics whenever a row of them is written."""


class StopFlag:
    """Turns a signal into a request to stop after the current update; a second SIGINT interrupts at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.reason = ""

    def __enter__(self) -> "StopFlag":
        self._previous = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name


class Trainer:
    """One run in progress: a learner fed by a pool of actors, with its metrics and checkpoints.

    Args:
        config: the run's configuration.
        learner: holds the agent.
        pool: answers with unrolls.
        directory: where metrics and checkpoints go.
        writer: writes metrics.
        fields: names of the world's episode fields.
        report: shows metrics to a person.
        warn: shows a warning to a person.
    """

    def __init__(
        self,
        config: RunConfig,
        learner: Learner,
        pool: ActorPool,
        directory: RunDirectory,
        writer: MetricsWriter,
        fields: tuple[str, ...],
        report: Report,
        warn: Callable[[str], None],
    ) -> None:
        self.config, self.learner, self.pool = config, learner, pool
        self.directory, self.writer, self.report, self.warn = directory, writer, report, warn
        self.fields = fields
        self.accumulator = Accumulator(config.num_actors, fields)
        self.batcher = Batcher(config.columns)
        self.best: tuple[float, int] | None = None
        """Mean return and step of the best checkpoint so far."""
        self._logged_at = learner.steps
        self._saved_at, self._saved_step = time.monotonic(), learner.steps
        self._publish()

    def run(self, stop: StopFlag) -> str:
        """Train until the steps are done, time is up or `stop` is set; returns why, after a last checkpoint."""
        deadline = time.monotonic() + 60 * self.config.time_limit if self.config.time_limit else float("inf")
        every = self.config.log_every
        try:
            while not (reason := self._reason_to_stop(stop, deadline)):
                self.update()
                if self.learner.steps // every > self._logged_at // every:
                    self.log()
                if time.monotonic() - self._saved_at >= self.config.checkpoint_every:
                    self.save()
        finally:
            # Also after an actor failed once too often: what was learnt is kept.
            if self.learner.steps > self._saved_step:
                self.save()
        if reason == "done" and self.learner.steps > self._logged_at:
            self.log()
        return reason

    def update(self) -> None:
        """One batch, one update, new weights."""
        with self.accumulator.time("queue_wait"):
            batch = self._batch()
        with self.accumulator.time("learner_busy"):
            lag = self.learner.updates - float(batch.weights_version.float().mean())
            metrics = self.learner.step(batch) | {"perf/policy_lag": lag}
            self._publish()
        self.accumulator.add_update(metrics)
        self.accumulator.add_episodes(batch.episodes.numpy())
        self.report(self.learner.steps, None)

    def log(self) -> None:
        """Write and show what happened since the last call."""
        metrics = self.accumulator.take(self.learner.steps)
        self._logged_at = self.learner.steps
        self.writer.write(self.learner.steps, metrics)
        self.report(self.learner.steps, metrics)

    def save(self) -> None:
        """Write a checkpoint; a full disk is a warning, not the end of the run."""
        self._saved_at, self._saved_step = time.monotonic(), self.learner.steps
        step, mean = self.learner.steps, self.accumulator.window_return()
        if mean is not None and (self.best is None or mean >= self.best[0]):
            self.best = (mean, step)
        folder = self.directory.checkpoints
        try:
            checkpoints.save(folder, step, self.state())
            checkpoints.prune(
                folder, self.config.keep_checkpoints, self.best and checkpoints.path_of(folder, self.best[1])
            )
        except checkpoints.CheckpointError as problem:
            self.warn(f"no checkpoint at step {step:,}: {problem}")

    def state(self) -> dict[str, Any]:
        """Everything that a continued run depends on."""
        state: dict[str, Any] = {
            "learner": self.learner.state_dict(),
            "best": self.best,
            "accumulator": self.accumulator.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }
        if self.config.synchronous:
            state["actors"] = self.pool.save()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.learner.load_state_dict(state["learner"])
        self.best = state["best"]
        self.accumulator.load_state_dict(state["accumulator"])
        torch.set_rng_state(state["torch_rng"])
        self._logged_at = self._saved_step = self.learner.steps
        self._publish()
        if "actors" in state and len(state["actors"]) == self.pool.num_actors:
            self.pool.restore(state["actors"])
        elif "actors" in state:
            self.warn(
                f"{self.pool.num_actors} actors instead of {len(state['actors'])}: environments start new episodes, "
                "so the numbers will not be those of the uninterrupted run"
            )

    def _batch(self) -> Unroll:
        if not self.config.synchronous:
            return self.batcher.next(self._pull)
        unrolls = self.pool.gather()
        for unroll in unrolls:
            self.accumulator.add_unroll(unroll.seconds, nbytes(unroll))
        return join(unrolls)

    def _pull(self) -> Unroll:
        unroll = self.pool.next()
        self.accumulator.add_unroll(unroll.seconds, nbytes(unroll))
        return unroll

    def _publish(self) -> None:
        self.pool.publish(Weights(self.learner.updates, 0, flatten(self.learner.agent)))

    def _reason_to_stop(self, stop: StopFlag, deadline: float) -> str:
        if self.learner.steps >= self.config.total_steps:
            return "done"
        if stop.reason:
            return stop.reason
        return "time limit" if time.monotonic() >= deadline else ""
