"""One probe, from the start or its newest checkpoint to its result."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ...base.errors import refuse, user_errors
from ...base.files import replace_file
from ...base.stop_flag import StopFlag
from ...envs.tasks.registry import examined_on, find_task, make_task
from ...envs.tasks.task import Task
from ...learners import checkpoints
from ...learners.supervised.learner import SupervisedLearner, examine
from ...learners.supervised.model import SequenceModel, to_tensors
from ...learners.supervised.scores import Score
from ..config.device import find_device
from ..metrics.writer import MetricsWriter
from ..runs.directory import RunDirectory
from ..runs.saved import take_weights
from .config import ProbeConfig

STOPPED = "stopped"  # First word of the last line of `rl-probe` after an early stop
RESULT = "result.json"
KEPT_CHECKPOINTS = 1
LINE_SECONDS = 10.0  # Seconds between two lines of progress
TEST_BATCH = 128  # Sequences per test batch


class ProbeRun:
    """A probe in progress. Raises EngramError for unknown names and invalid values, or if the task cannot be
    tested."""

    def __init__(self, config: ProbeConfig, show: Callable[[str], None]) -> None:
        self.config, self.show = config, show
        self.device = find_device(config.device)
        self.task, self.learner = make_learner(config, self.device)
        self.valid, self.tests = make_tests(config.task, config.task_args, config.seed)
        self.directory: RunDirectory  # Directory of metrics, checkpoints and the result; set by `begin`
        self.trained = 0.0  # Seconds of training that count toward the budget
        self._row: dict[str, list[float]] = {}

    @property
    def steps(self) -> int:
        """Number of sequence steps learned from."""
        return self.learner.updates * self.task.steps * self.task.num_sequences

    def begin(self, directory: RunDirectory) -> None:
        """Resume from a run's newest checkpoint, or start from the weights named in the configuration."""
        self.directory = directory
        newest = checkpoints.latest(directory.checkpoints)
        if newest is None:
            start_from(self.config.start_from, self.learner)
        else:
            saved = checkpoints.load(newest)
            self.learner.load_state_dict(saved["learner"])
            self.task.restore(saved["task"])
            self.trained, self._row = saved["trained"], {k: list(v) for k, v in saved["row"].items()}

    def train(self, stop: StopFlag) -> str:
        """Train until the budget is spent or `stop` is set; return the reason for the end."""
        last_line = last_save = time.monotonic()
        saved_at = self.learner.updates
        with MetricsWriter(self.directory.path, self.steps, self.show) as writer:
            writer.hparams(self.config)
            while not (reason := stop.reason or ("done" if self._is_done() else "")):
                begun = self._clock()
                metrics = self.learner.step(to_tensors(self.task.next(), self.device))
                self.trained += self._clock() - begun
                for name, value in metrics.items():
                    self._row.setdefault(name, []).append(value)
                if self.learner.updates % self.config.log_every == 0:
                    line = self._write(writer)
                    if time.monotonic() - last_line >= LINE_SECONDS:
                        last_line = time.monotonic()
                        self.show(line)
                if time.monotonic() - last_save >= self.config.checkpoint_every:
                    saved_at = self._save()
                    last_save = time.monotonic()
            if saved_at != self.learner.updates:
                self._save()
        return reason

    def result(self) -> dict[str, Any]:
        """Test on new data, once; write result.json and return its content."""
        config = self.config
        valid = self._examine(self.valid)
        tests: list[dict[str, Any]] = [
            {"test": label, "chance": task.chance, **described(self._examine(task))} for label, task in self.tests
        ]
        entry, _ = find_task(config.task)
        result = {
            "task": config.task,
            "core": config.core,
            "published": entry.published,
            "parameters": sum(p.numel() for p in self.learner.model.core.parameters()),
            "updates": self.learner.updates,
            "minutes": round(self.trained / 60, 3),
            "ms_per_update": round(1000 * self.trained / max(1, self.learner.updates), 3),
            "skipped": self.learner.skipped,
            "valid_accuracy": valid.accuracy,
            **{name: fmean(test[name] for test in tests) for name in ("accuracy", "low", "high", "chance")},
            "tests": tests,
            "config": asdict(config) | {"run_dir": None},
        }
        replace_file(self.directory.path / RESULT, json.dumps(result, indent=1).encode())
        return result

    def _examine(self, task: Task) -> Score:
        return examine(self.learner.model, task, -(-self.config.test_sequences // TEST_BATCH))

    def _is_done(self) -> bool:
        by_updates = self.config.updates and self.learner.updates >= self.config.updates
        by_time = self.config.minutes and not self.config.updates and self.trained >= 60 * self.config.minutes
        return bool(by_updates or by_time)

    def _write(self, writer: MetricsWriter) -> str:
        """Write a row of means since the last one, and return it as a line of text."""
        row = {name: sum(values) / len(values) for name, values in self._row.items()}
        self._row = {}
        row["perf/updates_per_second"] = self.learner.updates / max(self.trained, 1e-9)
        writer.write(self.steps, row)
        accuracy = f", {row['probe/accuracy']:.1%} correct" if "probe/accuracy" in row else ""
        return (
            f"update {self.learner.updates:,} after {self.trained / 60:.1f} min: "
            f"loss {row['loss/cross_entropy']:.4f}{accuracy}"
        )

    def _save(self) -> int:
        state = {
            "learner": self.learner.state_dict(),
            "task": self.task.save(),
            "trained": self.trained,
            "row": self._row,
        }
        checkpoints.save(self.directory.checkpoints, self.steps, state)
        checkpoints.prune(self.directory.checkpoints, KEPT_CHECKPOINTS)
        return self.learner.updates

    def _clock(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.monotonic()


def make_learner(config: ProbeConfig, device: torch.device) -> tuple[Any, SupervisedLearner]:
    """Make the task and a new network for it. Raises EngramError for unknown names and invalid values."""
    with user_errors():
        task = make_task(config.task, config.learner.batch_size, config.task_args, seed=config.seed)
        torch.manual_seed(config.seed)
        model = SequenceModel(task, config.core, config.core_args, config.learner).to(device)
    return task, SupervisedLearner(model, config.learner, task.stream)


def make_tests(task: str, task_args: Mapping[str, Any], seed: int) -> tuple[Task, list[tuple[str, Task]]]:
    """Make new data of a task that is trained with `task_args`: validation data from the distribution of training, for
    a search over settings, and every test with its label. Raises EngramError if files contain too little data."""

    def fresh(parameters: Mapping[str, Any], part: str) -> Task:
        return make_task(task, TEST_BATCH, parameters, seed=seed, part=part)

    with user_errors():
        tests = [(label, fresh(parameters, "test")) for label, parameters in examined_on(task, task_args)]
        return fresh(task_args, "valid"), tests


def start_from(run: str | None, learner: SupervisedLearner) -> None:
    """Load the weights of another probe into a new network. Raises EngramError if there are none or they do not
    fit."""
    if run is None:
        return
    refuse(not run, "--start-from is ''; allowed: the run directory of another probe")
    with user_errors("--start-from"):
        path = checkpoints.latest(RunDirectory.open(run, lock=False).checkpoints) or Path(run)
        refuse(path == Path(run), f"{run} has no checkpoint yet")
        saved = checkpoints.load(path)
        refuse("model" not in saved.get("learner", {}), f"{run}: its checkpoint is not from rl-probe")
    take_weights(learner.model, saved["learner"]["model"], path)


def described(score: Score) -> dict[str, Any]:
    """Return a score in the format of result.json."""
    low, high = score.interval()
    return {
        "accuracy": score.accuracy,
        "low": low,
        "high": high,
        "perfect": score.perfect_share,
        "nats": score.mean_nats,
        "asked": score.answers,
        "sequences": score.sequences,
    }
