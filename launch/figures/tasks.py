"""A figure with tasks: the best mean return of every core on every task, and its interquartile mean over tasks.

The score of a run is MMER of Morad et al. 2023 (POPGym): the maximum over training of the mean return of episodes,
here over the rows of metrics. A table compares finished runs only; curves also show the others.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare.statistics import Estimate, interquartile_mean_of

DPI = 110
COLUMNS = 3

Scores = dict[str, dict[str, NDArray[np.float64]]]


def scores(document: dict[str, Any]) -> Scores:
    """By core and task: the scores [seeds] of finished runs."""
    result: Scores = {}
    for curve in document["curves"].values():
        runs = [run for run in curve["runs"].values() if run["steps"] >= run["planned_steps"] and run["curve"]["step"]]
        if runs:
            result.setdefault(curve["core"], {})[curve["task"]] = np.array(
                [score(run, document["measure"], curve.get("window", 1)) for run in runs]
            )
    return result


def score(run: dict[str, Any], measure: str, window: int) -> float:
    """MMER of a run: the maximum over windows of about `window` steps of the mean, weighted by steps. A slow machine
    writes rows of fewer steps, whose noise would raise the maximum."""
    steps, values = np.array(run["curve"]["step"]), np.array(run["curve"][measure])
    spans = np.diff(steps, prepend=0)
    windows = (steps - 1) // window
    return float(max(np.average(values[windows == k], weights=spans[windows == k]) for k in np.unique(windows)))


def tasks_of(document: dict[str, Any]) -> list[str]:
    """Tasks with a run, in the order of the data file."""
    return list(dict.fromkeys(curve["task"] for curve in document["curves"].values()))


def ranking(by_core: Scores) -> list[tuple[str, Estimate]]:
    """Cores by the interquartile mean of their scores, best first; without cores that lack a task of the others. The
    bootstrap resamples seeds within each task. Scores are not normalized: POPGym's returns lie between -1 and 1."""
    tasks = {task for by_task in by_core.values() for task in by_task}
    complete = {core: by_task for core, by_task in by_core.items() if by_task.keys() == tasks}
    means = [(core, interquartile_mean_of(list(by_task.values()))) for core, by_task in complete.items()]
    return sorted(means, key=lambda each: -each[1].value)


def extent(document: dict[str, Any]) -> str:
    """Tasks, steps and seeds of a document, for a title."""
    runs = [(seed, run) for curve in document["curves"].values() for seed, run in curve["runs"].items()]
    seeds = sorted({seed for seed, _ in runs}, key=int)
    tasks, steps = tasks_of(document), max(run["planned_steps"] for _, run in runs)
    return (
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}, {steps / 1e6:.3g} M steps, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
    )


def draw(document: dict[str, Any], title: str, file: Path) -> None:
    """Plot the figure: interquartile means with their intervals, then a panel of training curves per task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = tasks_of(document)
    cores = list(dict.fromkeys(curve["core"] for curve in document["curves"].values()))
    rows = -(-(len(tasks) + 1) // COLUMNS)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(4.6 * COLUMNS, 3.4 * rows), squeeze=False)
    _draw_ranking(grid[0, 0], ranking(scores(document)), cores)
    for axes, task in zip(grid.flat[1:], tasks, strict=False):
        _draw_task(axes, document, task, cores)
    for axes in grid.flat[len(tasks) + 1 :]:
        axes.remove()
    handles = {
        label: line for axes in grid.flat[1:] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    figure.suptitle(f"{title}: {extent(document)}")
    figure.tight_layout()
    figure.savefig(file, dpi=DPI, metadata={"Software": None}, bbox_inches="tight")
    plt.close(figure)


def _draw_ranking(axes: Any, means: list[tuple[str, Estimate]], cores: list[str]) -> None:
    for place, (core, mean) in enumerate(reversed(means)):
        error = None if np.isnan(mean.low) else [[mean.value - mean.low], [mean.high - mean.value]]
        axes.errorbar(mean.value, place, xerr=error, fmt="o", color=curve_style(cores.index(core))[0], capsize=3)
    axes.set_yticks(range(len(means)), [core for core, _ in reversed(means)], fontsize=8)
    axes.set_title("interquartile mean of MMER", fontsize=10)


def _draw_task(axes: Any, document: dict[str, Any], task: str, cores: list[str]) -> None:
    """Mean over seeds of the return in training, with a band from lowest to highest."""
    for curve in document["curves"].values():
        runs = [run["curve"] for run in curve["runs"].values() if run["curve"]["step"]]
        if curve["task"] != task or not runs:
            continue
        steps = max(runs, key=lambda run: -run["step"][-1])["step"]
        values = np.array([np.interp(steps, run["step"], run[document["measure"]]) for run in runs])
        color, dashes = curve_style(cores.index(curve["core"]))
        axes.plot(np.array(steps) / 1e6, values.mean(0), dashes, color=color, label=curve["core"], linewidth=1)
        axes.fill_between(np.array(steps) / 1e6, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
    axes.set_title(task, fontsize=10)
    axes.set_xlabel("million environment steps")
    axes.set_ylabel(f"{document['measure']} in training")


def curve_style(number: int) -> tuple[str, str]:
    """Color and line style of a curve, different for the first thirty."""
    return f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]
