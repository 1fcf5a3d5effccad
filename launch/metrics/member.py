"""One learner of a run with its queue, metrics and settings; a plain run has one member, a population several."""

import copy
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ...actors.packed import weights_for
from ...actors.pool import ActorPool
from ...actors.unroll import Unroll
from ...agents.values import Weights, flatten
from ...learners.batches import Batcher
from ...learners.curriculum import Curriculum, Mixture, make_curriculum
from ...learners.learner import Learner
from ...learners.population.config import Values, applied
from ..config.run_config import RunConfig
from .accumulator import Accumulator, Settled
from .writer import MetricsWriter

if TYPE_CHECKING:
    from ...learners.remote.team import Team

SKIPPED = (
    "updates are skipped: the loss or its gradient is not finite; lower --lr or --max-grad-norm, or check the "
    "environment's observations and rewards for nan"
)
UNKNOWN = 20  # Number of consecutive episodes without the curriculum's measure that causes a warning


class Member:
    """A learner with its queue of unrolls, metrics and settings; without a writer, its metrics are not written."""

    def __init__(
        self,
        number: int,
        config: RunConfig,
        learner: Learner,
        writer: MetricsWriter | None,
        num_actors: int,
        fields: tuple[str, ...],
    ) -> None:
        self.number, self.config, self.learner, self.writer = number, config, learner, writer
        self.accumulator = Accumulator(num_actors, fields, config.factory().num_envs)
        self.batcher = Batcher(config.shares[0].environments)
        self.team: Team | None = None  # The learners of other processes; None if there are none
        self._next: Unroll | None = None  # The batch in transfer to the learner's device
        self.settings: Values = {}  # Settings that differ from the run's configuration
        self.evaluated: float | None = None  # Mean return of the last evaluation; None before the first
        self._evaluated_version = -1  # Version of the weights that were evaluated
        self.curriculum: Curriculum | Mixture | None = None
        self.notices: list[str] = []  # Messages for the user, not yet shown
        if config.levels.curriculum:
            self.curriculum = make_curriculum(config.levels, fields, config.fixed_actors or 0, config.actor_envs)
        self._beginnings = 0  # Number of times that all environments were reset for other weights or a new stage
        self._own_from = 0  # First version of the weights since then; unrolls of older versions are dropped
        self._logged_at, self._logged_time = 0, math.inf  # Step and time of the last row, or time of the first update
        self._skipped = float(learner.skipped)

    @property
    def steps(self) -> int:
        return self.learner.steps

    @property
    def updates(self) -> int:
        return self.learner.updates

    @property
    def done(self) -> bool:
        return self.steps >= self.config.total_steps

    @property
    def version(self) -> int:
        """Version of the weights: every update, copy and new stage increases it."""
        return self.updates + self._beginnings

    def weights(self, pool: ActorPool) -> Weights:
        """Return the newest weights for the actors, on the device of the pool."""
        stage = self.curriculum.stage if self.curriculum else 0
        if pool.device.type == "cpu":
            values, ready = flatten(self.learner.agent), None
        else:
            values, ready = weights_for(self.learner.agent, pool.device)
        return Weights(self.version, self.number, values, self._beginnings, stage, ready)

    def receive(self, unroll: Unroll) -> None:
        """Queue an unroll, or drop it if its weights predate a copy or a new stage, or if all steps are done."""
        if int(unroll.weights_version[0]) >= self._own_from and not self.done:
            self.accumulator.add_unroll(unroll.seconds)
            self.batcher.add(unroll)

    def take(self) -> Unroll | None:
        """Return the next batch, or None until it and those of the other learners are complete."""
        if self.team and self.batcher.complete and not self.team.ready():
            return None
        batch, self._next = self._next, None
        return batch or self.batcher.take()

    def prefetch(self) -> None:
        """Copy the next batch, if it is complete, to the learner's device while the learner computes."""
        if self.learner.device.type != "cpu" and self._next is None and (batch := self.batcher.take()) is not None:
            self.learner.send(batch)
            self._next = batch

    def note_update(self, batch: Unroll, others: dict[str, float] | None = None) -> None:
        """Record the update that the learner has just made, or on a GPU may still be computing."""
        while self.team and self.team.seconds:
            self.accumulator.add_unroll(self.team.seconds.pop())
        lags = self.version - 1 - batch.weights_version.float()
        used = {f"population/{name}": value for name, value in self.settings.items()}
        self.accumulator.add_metrics({"perf/policy_lag": float(lags.mean())} | used | (others or {}))
        self.accumulator.note_lag(float(lags.max()))
        episodes = batch.episodes.numpy()
        self.accumulator.add_episodes(episodes)
        if self.curriculum:
            if self.curriculum.add(episodes, self.steps):
                self._restart_episodes()
                self.notices.append(f"{self.curriculum} from step {self.steps:,} on")
            elif self.curriculum.unknown >= UNKNOWN:
                problem = f"no episode reports {self.config.levels.curriculum_measure!r}, so no stage can end"
                self.notices.append(f"{problem}; set --curriculum-measure to another field")
            self.accumulator.note(self.curriculum.metrics())
        if self.learner.device.type == "cpu":
            self.read()

    def read(self) -> None:
        """Record the learner's metrics of all updates so far; wait for the learner's device."""
        for metrics in self.learner.read():
            if metrics["learner/skipped"] and not self._skipped:
                self.notices.append(SKIPPED)
            self._skipped = metrics["learner/skipped"]
            self.accumulator.add_update(metrics)

    def note_evaluation(self, metrics: dict[str, float]) -> None:
        """Store an evaluation's metrics for the next row, and its mean return."""
        self.evaluated, self._evaluated_version = metrics["eval/return"], self.version
        self.accumulator.note(metrics)

    def due_seed(self, before: int, every: int) -> int | None:
        """Seed of the levels to play if a multiple of `every` steps, or the end, came after step `before`; else None.
        A resumed run plays the same levels as an uninterrupted one."""
        index = self.steps // every
        if index == before // every and not (self.done and before < self.steps):
            return None
        return int(np.random.SeedSequence((self.config.seed, index)).generate_state(1)[0])

    def score(self) -> Settled | None:
        """Mean return in the full environment: of an evaluation of the current weights if the run has evaluations,
        otherwise of a full window of episodes; None if there is none yet."""
        if self.config.eval_every:
            if self.evaluated is None or self._evaluated_version != self.version:
                return None
            return Settled(self.evaluated, self.config.eval_episodes, None)
        return None if self.curriculum and not self.curriculum.is_last else self.accumulator.settled()

    def configure(self, settings: Values) -> None:
        self.settings = dict(settings)
        self.learner.reconfigure(applied(self.config.learner, settings))

    def snapshot(self, *, lasting: bool) -> dict[str, Any]:
        """Weights and optimizer state for another member's `become`; `lasting`: a copy that updates do not change."""
        state = self.learner.state_dict()
        state = {name: state[name] for name in ("agent", "optimizer")}
        return copy.deepcopy(state) if lasting else state

    def become(self, snapshot: dict[str, Any], settings: Values) -> None:
        self.learner.take_over(**snapshot)
        self.configure(settings)
        self._restart_episodes()

    def _restart_episodes(self) -> None:
        """Make actors begin new episodes with the next weights, and drop earlier unrolls."""
        self._beginnings += 1
        self._own_from = self.version
        self.accumulator.begin_anew()
        self.batcher, self._next = Batcher(self.config.shares[0].environments), None

    def begin_episodes(self) -> None:
        """Note that all environments begin new episodes, as in a run resumed with new actors."""
        self.accumulator.begin_episodes()
        if self.curriculum:
            self.curriculum.begin_episodes()

    def due(self) -> bool:
        every, seconds, now = self.config.log_every, self.config.log_seconds, time.monotonic()
        self._logged_time = min(self._logged_time, now)
        late = seconds > 0 and now - self._logged_time >= seconds
        return self.steps // every > self._logged_at // every or ((self.done or late) and self.steps > self._logged_at)

    def log(self, num_actors: int, failures: int, stored_bytes: int | None) -> dict[str, float]:
        self.read()
        self.accumulator.note_actors(num_actors, failures, stored_bytes)
        if self.curriculum:
            self.curriculum.note_environments(num_actors * self.config.actor_envs)
        metrics = self.accumulator.take(self.steps)
        self._logged_at, self._logged_time = self.steps, time.monotonic()
        if self.writer is not None:
            self.writer.write(self.steps, metrics)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the member's state for a resume; the population stores its settings."""
        self.read()
        return {
            "learner": self.learner.state_dict(),
            "accumulator": self.accumulator.state_dict(),
            "copies": self._beginnings,
            "own_from": self._own_from,
            "evaluated": self.evaluated,
            "evaluated_version": self._evaluated_version,
            "curriculum": self.curriculum.state_dict() if self.curriculum else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self._skipped = float(self.learner.skipped)
        self.accumulator.load_state_dict(state["accumulator"])
        self._beginnings, self._own_from = state["copies"], state["own_from"]
        self.evaluated, self._evaluated_version = state.get("evaluated"), state.get("evaluated_version", -1)
        if self.curriculum:
            self.curriculum.load_state_dict(state["curriculum"])
        self._logged_at = self.steps
