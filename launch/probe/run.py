"""One probe, from the start or its newest checkpoint to its result."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Any

import torch

from ...base.errors import EngramError, refuse, user_errors
from ...base.files import replace_file
from ...base.stop_flag import StopFlag
from ...envs.tasks.registry import examined_on, find_task, make_task
from ...envs.tasks.task import Task
from ...learners import checkpoints
from ...learners.supervised import Score, SequenceModel, SupervisedLearner, examine, to_tensors
from ..config.device import find_device
from ..metrics.writer import MetricsWriter
from ..runs.directory import RunDirectory
from ..runs.saved import take_weights
from .config import ProbeConfig

STOPPED = "stopped"  # First word of the last line of `rl-probe` after an early stop
RESULT = "result.json"
LINE_SECONDS = 10.0  # Seconds between two lines of progress
TEST_BATCH = 128  # Sequences per test batch


class ProbeRun:
    """A probe in progress. Raises EngramError for unknown names and invalid values."""

    def __init__(self, config: ProbeConfig, show: Callable[[str], None]) -> None:
        self.config, self.show = config, show
        self.device = find_device(config.device)
        with user_errors():
            self.task: Any = make_task(config.task, config.learner.batch_size, config.task_args, seed=config.seed)
            torch.manual_seed(config.seed)
            model = SequenceModel(self.task, config.core, config.core_args, config.learner).to(self.device)
            fresh = partial(make_task, config.task, TEST_BATCH, seed=config.seed)
            self.valid = fresh(config.task_args, part="valid")
            tests = examined_on(config.task, config.task_args)
            self.tests = [(label, fresh(parameters, part="test")) for label, parameters in tests]
        self.learner = SupervisedLearner(model, config.learner, self.task.stream)
        self.trained = 0.0  # Seconds of training that count toward the budget
        self._row: dict[str, list[float]] = {}

    @property
    def steps(self) -> int:
        return self.learner.updates * self.task.steps * self.task.num_sequences

    def restore(self, directory: RunDirectory | None) -> None:
        """Continue from a run's newest checkpoint, or start from the weights of --start-from, if there are any."""
        newest = directory and checkpoints.latest(directory.checkpoints)
        if newest:
            saved = checkpoints.load(newest)
            self.learner.load_state_dict(saved["learner"])
            self.task.restore(saved["task"])
            self.trained, self._row = saved["trained"], {k: list(v) for k, v in saved["row"].items()}
        elif (other := self.config.start_from) is not None:
            refuse(not other, "--start-from is ''; allowed: the run directory of another probe")
            with user_errors("--start-from"):
                path = checkpoints.latest(RunDirectory.open(other, lock=False).checkpoints)
                if path is None:
                    raise EngramError(f"{other} has no checkpoint yet")
                weights = checkpoints.load(path).get("learner", {}).get("model")
                refuse(weights is None, f"{other}: its checkpoint is not from rl-probe")
            take_weights(self.learner.model, weights, path)

    def train(self, directory: RunDirectory, stop: StopFlag) -> str:
        """Train until the budget is spent or `stop` is set; return the reason for the end."""
        last_line = last_save = time.monotonic()
        with MetricsWriter(directory.path, self.steps, self.show) as writer:
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
                    self._save(directory)
                    last_save = time.monotonic()
            self._save(directory)
        return reason

    def result(self, directory: RunDirectory) -> dict[str, Any]:
        """Test on new data, once; write result.json and return its content."""
        config = self.config
        tests: list[dict[str, Any]] = [
            {"test": label, "chance": task.chance, **self._examine(task).plain()} for label, task in self.tests
        ]
        result = {
            "task": config.task,
            "core": config.core,
            "published": find_task(config.task)[0].published,
            "parameters": sum(p.numel() for p in self.learner.model.core.parameters()),
            "updates": self.learner.updates,
            "minutes": round(self.trained / 60, 3),
            "ms_per_update": round(1000 * self.trained / max(1, self.learner.updates), 3),
            "skipped": self.learner.skipped,
            "valid_accuracy": self._examine(self.valid).accuracy,
            **{name: fmean(test[name] for test in tests) for name in ("accuracy", "low", "high", "chance")},
            "tests": tests,
            "config": asdict(config) | {"run_dir": None},
        }
        replace_file(directory.path / RESULT, json.dumps(result, indent=1).encode())
        return result

    def _examine(self, task: Task) -> Score:
        return examine(self.learner.model, task, -(-self.config.test_sequences // TEST_BATCH))

    def _is_done(self) -> bool:
        if self.config.updates:
            return self.learner.updates >= self.config.updates
        return self.trained >= 60 * self.config.minutes

    def _write(self, writer: MetricsWriter) -> str:
        """Write a row of means since the last one, and return it as a line of text."""
        row = {name: sum(values) / len(values) for name, values in self._row.items()}
        self._row = {}
        row["perf/updates_per_second"] = self.learner.updates / max(self.trained, 1e-9)
        writer.write(self.steps, row)
        accuracy = f", {row['probe/accuracy']:.1%} correct" if "probe/accuracy" in row else ""
        loss = f"loss {row['loss/cross_entropy']:.4f}{accuracy}"
        return f"update {self.learner.updates:,} after {self.trained / 60:.1f} min: {loss}"

    def _save(self, directory: RunDirectory) -> None:
        state = {"learner": self.learner.state_dict(), "task": self.task.save()}
        state |= {"trained": self.trained, "row": self._row}
        checkpoints.save(directory.checkpoints, self.steps, state)
        checkpoints.prune(directory.checkpoints, 1)

    def _clock(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.monotonic()
