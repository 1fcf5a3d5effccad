"""One of several runs of a directory, as a job of the scheduler, and a table of all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.table import Table

from ...learners import checkpoints
from ..cluster.scheduler import Job, tool
from ..metrics.rows import final_value, read_log, series, table_of
from ..run.config import RunConfig
from ..run.run_directory import RunDirectory
from .plan import Plan

METRIC = "episode/return"  # Metric by which trials are sorted


@dataclass(frozen=True, eq=False)
class TrialRun(Job):
    """A run directory inside the directory of several runs; its label is the path there."""

    trial: int
    seed: int
    config: RunConfig  # Configuration for resuming the run
    flags: tuple[str, ...] = ()  # Flags of `rl-train --resume`

    @property
    def total_steps(self) -> int:
        """Total steps of all members."""
        return self.config.total_steps * self.config.num_members

    @property
    def finished(self) -> bool:
        """Whether the newest checkpoint has all steps."""
        newest = checkpoints.latest(RunDirectory(self.folder).checkpoints)
        return newest is not None and checkpoints.step_of(newest) >= self.total_steps

    def command(self) -> list[str]:
        """The command to resume; a run without a checkpoint starts from its configuration."""
        return [tool("rl-train"), "--resume", str(self.folder), *self.flags]

    def final(self) -> float:
        """Mean of METRIC over the last tenth of the run's steps; nan if no episode has ended."""
        steps, values = series(table_of(read_log(RunDirectory(self.folder).metrics_file)), METRIC)
        return final_value(steps, values, steps[-1] if len(steps) else 0.0)


def summary(plan: Plan, runs: Sequence[TrialRun]) -> Table:
    """A row per trial, best first; without a sweep a row per seed and their mean."""
    table = Table(box=box.SIMPLE_HEAD)
    names = [each.setting for each in plan.space]
    for name in (*(["trial", *names] if plan.sweep else ["seed"]), "return", "steps", "state"):
        table.add_column(name, justify="left" if name == "state" else "right", overflow="fold")
    groups: list[tuple[list[str], list[TrialRun]]] = []
    if plan.sweep:
        for trial in range(plan.trials):
            values = plan.values(trial)
            labels = [f"{trial}", *(f"{values[name]:.4g}" for name in names)]
            groups.append((labels, [run for run in runs if run.trial == trial]))
        groups.sort(key=lambda group: -np.nan_to_num(np.mean(_finals(group[1]) or [np.nan]), nan=-np.inf))
    else:
        groups = [([f"{run.seed}"], [run]) for run in runs]
        groups += [(["mean"], list(runs))] if len(runs) > 1 else []
    for labels, together in groups:
        finals, done, total = _finals(together), sum(run.finished for run in together), len(together)
        spread = f" (sd {np.std(finals, ddof=1):.2g}, n {len(finals)})" if len(finals) > 1 else ""
        state = "finished" if done == total else f"{done} of {total} finished" if total > 1 else "unfinished"
        result = f"{np.mean(finals):.4g}{spread}" if finals else "-"
        table.add_row(*labels, result, f"{sum(run.steps() for run in together):,}", state)
    return table


def _finals(runs: Sequence[TrialRun]) -> list[float]:
    return [x for run in runs if not math.isnan(x := run.final())]
