"""The runs of a figure: a process of `rl-train` for each curve and seed, some at a time, stopped and continued at will.

A run is finished when its evaluation is written. Whatever stops the command, the next one goes on from the newest
checkpoint of every run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.files import replace_file
from ...base.processes import end_with_parent
from ...learners import checkpoints
from ..run import saved
from ..run.command_line import UsageError
from ..run.config import RunConfig
from ..run.run_directory import CONFIG, RunDirectory, RunDirectoryError
from ..run.trained import fixed_differences, run_config
from .figure import Curve, Figure

NICENESS = 10
"""The command's runs leave the machine usable for other work."""
LOOK_SECONDS = 2.0


class RunFailedError(RuntimeError):
    """A run of a figure ended with an error; the message says which, and where its output is."""


@dataclass(frozen=True, eq=False)
class FigureRun:
    """One curve with one seed, and its place on disk."""

    figure: Figure
    curve: Curve
    seed: int
    folder: Path
    """The run directory; output and evaluation lie beside it."""

    @property
    def label(self) -> str:
        """Curve and seed."""
        return f"{self.curve.name}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """Output of `rl-train` and `rl-eval`."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def evaluation_file(self) -> Path:
        """File of `rl-eval`'s results; there once the run is finished."""
        return self.folder.with_name(f"{self.folder.name}.evaluation.json")

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end and evaluated."""
        return self.evaluation_file.exists() and self.evaluation()["step"] >= self.curve.steps

    @property
    def begun(self) -> bool:
        """Whether there is a run to go on with, be it from its beginning: what killed it may have come first."""
        return (self.folder / CONFIG).exists()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint, which can be evaluated."""
        return self.checkpoint() is not None

    def checkpoint(self) -> Path | None:
        """The newest intact checkpoint."""
        return checkpoints.latest(self.folder / "checkpoints")

    def steps(self) -> int:
        """Steps that metrics have been written for."""
        rows = self.rows()
        return rows[-1]["step"] if rows else 0

    def rows(self) -> list[dict[str, Any]]:
        """All rows of metrics that are whole."""
        return read_rows(self.folder / "metrics.jsonl")

    def evaluation(self) -> dict[str, Any]:
        """Results of `rl-eval`."""
        return json.loads(self.evaluation_file.read_text())

    def checkpoint_step(self) -> int:
        """Steps that the newest intact checkpoint holds; 0 without one."""
        found = self.checkpoint()
        return checkpoints.step_of(found) if found else 0

    def check(self) -> None:
        """Raise UsageError if the run was begun with settings that are not the curve's."""
        if not self.begun:
            return
        wanted = replace(self.curve.config, seed=self.seed)
        for name, then, now in fixed_differences(self._config(), wanted):
            raise UsageError(
                f"{self.folder} was trained with {name} = {then!r}, curve {self.curve.name} has {now!r} now; "
                "move the directory away, or choose another one with --runs"
            )

    def _config(self) -> RunConfig:
        """The configuration that the run was begun with. Raises UsageError."""
        try:
            return run_config(RunDirectory.open(str(self.folder), lock=False))
        except RunDirectoryError as problem:
            raise UsageError(str(problem)) from problem

    def _has_best(self) -> bool:
        """Whether evaluations on the way have said which checkpoint is best."""
        newest = self.checkpoint()
        return newest is not None and self._config().eval_every > 0 and saved.read(newest)["best"] is not None

    def command(self) -> list[str]:
        """The words that start the run, or continue it, to the curve's end if that is later now than it was."""
        if self.begun:
            words, steps = [_tool("rl-train"), "--resume", str(self.folder)], self.curve.config.total_steps
            return [*words, "--total-steps", str(steps)] if steps > self._config().total_steps else words
        words = [*self.curve.arguments, "--seed", str(self.seed), "--run-dir", str(self.folder)]
        return [_tool("rl-train"), *words]

    def evaluate(self) -> None:
        """Play fresh levels with the newest weights, of a population its best member's, and note the result.

        A run with `--eval-every` plays the weights that were best in its evaluations, whose levels were others.
        """
        raw, step = self.folder.with_name(f".{self.folder.name}.json"), self.checkpoint_step()
        words = [_tool("rl-eval"), str(self.folder), "--episodes", str(self.figure.episodes), "--json", str(raw)]
        words += ["--checkpoint", "best" if self._has_best() else str(step)]
        if self.figure.evaluation:
            words += ["--env-args", *(f"{key}={value}" for key, value in self.figure.evaluation.items())]
        with self.log.open("a") as log:
            done = subprocess.run(words, stdout=log, stderr=log, check=False, preexec_fn=_lower)
        if done.returncode:
            raise RunFailedError(f"{self.label}: rl-eval ended with exit code {done.returncode}; see {self.log}")
        found = json.loads(raw.read_text())
        found |= {"step": step, "weights_step": checkpoints.step_of(Path(found["checkpoint"]))}
        replace_file(self.evaluation_file, json.dumps(found, indent=1).encode())
        raw.unlink()


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The whole rows of a file of JSON lines; none if there is no such file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("}\n")]


def train_all(runs: Sequence[FigureRun], jobs: int, report: Callable[[FigureRun, str], None], deadline: float) -> bool:
    """Train and evaluate what is not finished, `jobs` runs at a time; returns whether all are finished.

    Args:
        runs: of one figure, in the order in which to begin them.
        jobs: processes of rl-train at a time.
        report: called with a run and what happened to it: "started", "running", "finished", "stopped" or "failed".
        deadline: time.monotonic() at which everything is stopped; what was learnt is kept.

    Raises KeyboardInterrupt, after all runs have written their checkpoints; RunFailedError if a run failed, after the
    others have come to their end.
    """
    waiting = [run for run in runs if not run.finished]
    running: dict[FigureRun, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                running[run] = _start(run)
                report(run, "started")
            time.sleep(LOOK_SECONDS)
            for run, process in list(running.items()):
                if process.poll() is None:
                    report(run, "running")
                    continue
                del running[run]
                failed += _end(run, process.returncode, report)
    finally:
        _stop(running, report)
    if failed:
        raise RunFailedError("; ".join(failed))
    return all(run.finished for run in runs)


def _end(run: FigureRun, code: int, report: Callable[[FigureRun, str], None]) -> list[str]:
    """Evaluate a run whose training has ended; returns why that failed, if it did."""
    try:
        if code:
            raise RunFailedError(f"{run.label}: rl-train ended with exit code {code}; see {run.log}")
        run.evaluate()
    except RunFailedError as problem:
        report(run, "failed")
        return [str(problem)]
    report(run, "finished")
    return []


def _start(run: FigureRun) -> "subprocess.Popen[bytes]":
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("ab") as log:
        # A group of its own: Ctrl-C comes to this process alone, which then asks the runs to stop and waits for them.
        return subprocess.Popen(
            run.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_lower, start_new_session=True
        )


def _stop(running: dict[FigureRun, "subprocess.Popen[bytes]"], report: Callable[[FigureRun, str], None]) -> None:
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    for run, process in running.items():
        process.wait()
        report(run, "stopped")


def _lower() -> None:
    os.nice(NICENESS)
    end_with_parent()  # with a checkpoint, however the parent dies


def _tool(name: str) -> str:
    """A command of the same installation."""
    return str(Path(sys.executable).with_name(name))
