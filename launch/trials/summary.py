"""Summary of several runs: seeds with their mean, or trials sorted by their final return."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich import box
from rich.table import Table

from .plan import Plan
from .trial import TrialRun


def summary(plan: Plan, runs: Sequence[TrialRun]) -> Table:
    """A row per trial, best first; without a sweep a row per seed and their mean."""
    table = Table(box=box.SIMPLE_HEAD)
    names = [each.setting for each in plan.space]
    for name in (*(["trial", *names] if plan.sweep else ["seed"]), "return", "steps", "state"):
        table.add_column(name, justify="left" if name == "state" else "right", overflow="fold")
    trials = [list(group) for _, group in groupby(runs, key=lambda run: run.trial)]
    if plan.sweep:
        for group in sorted(trials, key=lambda group: _order(_mean(group))):
            values = plan.values(group[0].trial)
            table.add_row(f"{group[0].trial}", *(f"{values[name]:.4g}" for name in names), *_cells(group))
        return table
    for run in runs:
        table.add_row(f"{run.seed}", *_cells([run]))
    if len(runs) > 1:
        table.add_section()
        table.add_row("mean", *_cells(runs))
    return table


def _cells(runs: Sequence[TrialRun]) -> tuple[str, str, str]:
    """Return with its standard deviation over runs, steps, state."""
    finals = [x for run in runs if not math.isnan(x := run.final())]
    shown = f"{np.mean(finals):.4g}" if finals else "-"
    if len(finals) > 1:
        shown += f" (sd {np.std(finals, ddof=1):.2g}, n {len(finals)})"
    done = sum(run.finished for run in runs)
    state = "finished" if done == len(runs) else f"{done} of {len(runs)} finished" if len(runs) > 1 else "unfinished"
    return shown, f"{sum(run.steps() for run in runs):,}", state


def _mean(runs: Sequence[TrialRun]) -> float:
    finals = [x for run in runs if not math.isnan(x := run.final())]
    return float(np.mean(finals)) if finals else math.nan


def _order(value: float) -> tuple[bool, float]:
    """Highest first, nan last."""
    return math.isnan(value), -value
