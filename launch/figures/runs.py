"""The runs of a figure: an `rl-train` process for each curve and seed, a few at a time, which can be stopped and
resumed.

A run is finished when its evaluation is written. After a stop, the next command resumes every run from its newest
checkpoint.
"""

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import EngramError
from ...base.files import replace_file
from ...learners import checkpoints
from ..cluster.scheduler import Job, RunFailedError, lower_priority, tool
from ..config.run_config import RunConfig
from ..metrics.rows import Row, read_log
from ..runs import saved
from ..runs.directory import CONFIG, RunDirectory
from ..runs.trained import fixed_differences, run_config
from .figure import Curve, Figure


@dataclass(frozen=True, eq=False)
class FigureRun(Job):
    """One curve with one seed; its evaluation is next to its run directory."""

    figure: Figure
    curve: Curve
    seed: int

    @property
    def evaluation_file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.evaluation.json")

    @property
    def total_steps(self) -> int:
        return self.curve.steps

    @property
    def finished(self) -> bool:
        return self.evaluation_file.exists() and self.evaluation()["step"] >= self.curve.steps

    @property
    def begun(self) -> bool:
        """Whether there is a run to resume, possibly without a checkpoint."""
        return (self.folder / CONFIG).exists()

    def checkpoint(self) -> Path | None:
        """The newest intact checkpoint."""
        return checkpoints.latest(self.folder / "checkpoints")

    def rows(self) -> list[Row]:
        return read_log(self.folder / "metrics.jsonl")

    def evaluation(self) -> dict[str, Any]:
        return json.loads(self.evaluation_file.read_text())

    def checkpoint_step(self) -> int:
        """Steps of the newest intact checkpoint; 0 without one."""
        newest = self.checkpoint()
        return checkpoints.step_of(newest) if newest else 0

    def check(self) -> None:
        """Raise EngramError if the run was started with settings that differ from the curve's."""
        if not self.begun:
            return
        begun, expected = self._config(), replace(self.curve.config, seed=self.seed)
        if expected.learner.precision == "auto":  # the run recorded its choice
            expected = replace(expected, learner=replace(expected.learner, precision=begun.learner.precision))
        for name, then, now in fixed_differences(begun, expected):
            raise EngramError(
                f"{self.folder} was trained with {name} = {then!r}, but curve {self.curve.name} now has {now!r}; "
                "move the directory away, or choose another one with --runs"
            )

    def _config(self) -> RunConfig:
        return run_config(RunDirectory.open(self.folder, lock=False))

    def command(self) -> list[str]:
        """Return the command that starts or resumes the run, with the curve's total steps if they have increased."""
        if self.begun:
            arguments, steps = [tool("rl-train"), "--resume", str(self.folder)], self.curve.config.total_steps
            return [*arguments, "--total-steps", str(steps)] if steps > self._config().total_steps else arguments
        arguments = [*self.curve.arguments, "--seed", str(self.seed), "--run-dir", str(self.folder)]
        return [tool("rl-train"), *arguments]

    def complete(self) -> None:
        """Evaluate the newest weights (for a population, its best member's) on new levels, and save the result.
        For a run with `--eval-every`, evaluate the weights that were best in its own evaluations."""
        raw, newest = self.folder.with_name(f".{self.folder.name}.json"), self.checkpoint()
        step = checkpoints.step_of(newest) if newest else 0
        arguments = [tool("rl-eval"), str(self.folder), "--episodes", str(self.figure.episodes), "--json", str(raw)]
        has_best = newest and self._config().eval_every > 0 and saved.read(newest)["best"] is not None
        arguments += ["--checkpoint", "best" if has_best else str(step)]
        if self.figure.evaluation:
            arguments += ["--env-args", *(f"{key}={value}" for key, value in self.figure.evaluation.items())]
        with self.log.open("a") as log:
            done = subprocess.run(arguments, stdout=log, stderr=log, check=False, preexec_fn=lower_priority)
        if done.returncode:
            raise RunFailedError(f"{self.label}: rl-eval ended with exit code {done.returncode}; see {self.log}")
        evaluation = json.loads(raw.read_text())
        if self.figure.measure not in evaluation["all"]:
            names = ", ".join(name for name in evaluation["all"] if name != "episodes")
            raise RunFailedError(f"{self.label}: measure is {self.figure.measure!r}; rl-eval reports: {names}")
        evaluation |= {"step": step, "weights_step": checkpoints.step_of(Path(evaluation["checkpoint"]))}
        replace_file(self.evaluation_file, json.dumps(evaluation, indent=1).encode())
        raw.unlink()

    def outcome(self, event: str) -> str:
        line = super().outcome(event)
        if event in ("finished", "evaluated"):
            estimate = self.evaluation()["all"][self.figure.measure]
            line += f", {self.figure.measure} {estimate['mean']:.3g} [{estimate['low']:.3g}, {estimate['high']:.3g}]"
        return line
