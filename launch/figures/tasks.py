"""A figure with tasks: the best mean return of every core on every task, and its interquartile mean over tasks.

The score of a run is MMER of Morad et al. 2023 (POPGym): the maximum over training of the mean return of episodes,
here over the rows of metrics. Tables compare only finished runs; curves also show unfinished ones.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare.statistics import Estimate, interquartile_mean_of

Scores = dict[str, dict[str, NDArray[np.float64]]]


def scores(document: dict[str, Any]) -> Scores:
    """Return the scores [seeds] of finished runs, by core and task."""
    result: Scores = {}
    for curve in document["curves"].values():
        runs = [run for run in curve["runs"].values() if run["steps"] >= run["planned_steps"] and run["curve"]["step"]]
        if runs:
            result.setdefault(curve["core"], {})[curve["task"]] = np.array(
                [score(run, document["measure"], curve.get("window", 1)) for run in runs]
            )
    return result


def score(run: dict[str, Any], measure: str, window: int) -> float:
    """MMER of a run: the maximum, over windows of about `window` steps, of the mean weighted by steps. On a slow
    machine, each row covers fewer steps, and its larger noise would raise the maximum."""
    steps, values = np.array(run["curve"]["step"]), np.array(run["curve"][measure])
    spans = np.diff(steps, prepend=0)
    windows = (steps - 1) // window
    return float(max(np.average(values[windows == k], weights=spans[windows == k]) for k in np.unique(windows)))


def tasks_of(document: dict[str, Any]) -> list[str]:
    """Tasks with a run, in the order of the data file."""
    return list(dict.fromkeys(curve["task"] for curve in document["curves"].values()))


def ranking(by_core: Scores) -> list[tuple[str, Estimate]]:
    """Rank cores by the interquartile mean of their scores, without cores that lack a task others have. The bootstrap
    resamples seeds within each task. Scores are not normalized: POPGym's returns lie between -1 and 1."""
    tasks = {task for by_task in by_core.values() for task in by_task}
    complete = {core: by_task for core, by_task in by_core.items() if by_task.keys() == tasks}
    means = [(core, interquartile_mean_of(list(by_task.values()))) for core, by_task in complete.items()]
    return sorted(means, key=lambda item: -item[1].value)


def extent(document: dict[str, Any]) -> str:
    runs = [(seed, run) for curve in document["curves"].values() for seed, run in curve["runs"].items()]
    seeds = sorted({seed for seed, _ in runs}, key=int)
    tasks, steps = tasks_of(document), max(run["planned_steps"] for _, run in runs)
    return (
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}, {steps / 1e6:.3g} M steps, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
    )
