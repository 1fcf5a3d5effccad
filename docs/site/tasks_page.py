"""The part of docs/results.md of a figure with tasks: ranking, scores by task, and the best cores of each task."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engram.launch.compare.statistics import Estimate
from engram.launch.figures.figure import Figure
from engram.launch.figures.results import Scores, extent, ranking, scores, tasks_of

INTERVALS = "Brackets: 95% bootstrap interval over seeds, resampled within tasks; none where a task has one seed."
BEST = 3


def text(folder: str, figure: Figure, documents: Mapping[str, dict[str, Any]]) -> str:
    """Title, plot, table and the best cores by task, for every size with results.

    Args:
        folder: path of the plots relative to the page.
        figure: the figure.
        documents: its results by size.
    """
    full = figure.settings["full"]
    lines = [f"## {figure.title}", ""]
    for size in (size for size in ("full", "quick") if size in documents):
        lines += [*_part(folder, figure, size, documents[size]), ""]
    if "full" not in documents:
        hours = f", about {full.core_hours:,.0f} hours of one core" if full.core_hours else ""
        lines += [f"The full table ({full.steps / 1e6:,.0f} M steps{hours}) is not trained yet.", ""]
    again = " and ".join(f"`rl-reproduce {figure.name}{_flag(size)}`" for size in figure.settings)
    return "\n".join([*lines, f"{figure.source}. {full.note}", f"Stopping rule: {full.stop}", f"Repeat with {again}."])


def _part(folder: str, figure: Figure, size: str, document: dict[str, Any]) -> list[str]:
    image = f"{folder}/{figure.name}{_flag(size).replace(' --', '-')}.png"
    found, tasks = scores(document), tasks_of(document)
    means = dict(ranking(found))
    cores = [*means, *(core for core in found if core not in means)]
    return [
        f"![{figure.title}: {extent(document)}]({image})",
        "",
        f"MMER of {extent(document)}; IQM is the interquartile mean over tasks and seeds.",
        "",
        f"| core | IQM | {' | '.join(tasks)} |",
        "|---|---|" + "---|" * len(tasks),
        *(_row(core, means.get(core), found[core], tasks) for core in cores),
        "",
        f"{INTERVALS}{_unfinished(document)}",
        "",
        *(_best(task, found) for task in tasks),
    ]


def _row(core: str, mean: Estimate | None, by_task: Any, tasks: list[str]) -> str:
    cells = [f"{by_task[task].mean():.3f}" if task in by_task else "-" for task in tasks]
    return f"| {core} | {_estimate(mean)} | {' | '.join(cells)} |"


def _estimate(mean: Estimate | None) -> str:
    if mean is None:
        return "-"
    return f"{mean.value:.3f}" + ("" if np.isnan(mean.low) else f" [{mean.low:.3f}, {mean.high:.3f}]")


def _best(task: str, found: Scores) -> str:
    """The best cores of a task, with the range of their seeds."""
    ranked = sorted(((by_task[task], core) for core, by_task in found.items() if task in by_task), key=_mean)[:BEST]
    shown = (f"{core} {values.mean():.3f}{_range(values)}" for values, core in ranked)
    return f"- Best cores for {task.replace('-', ' ')}: {', '.join(shown) or 'not finished'}."


def _mean(each: tuple[Any, str]) -> float:
    return -each[0].mean()


def _range(values: Any) -> str:
    return f" ({values.min():.3f} to {values.max():.3f})" if len(values) > 1 else ""


def _unfinished(document: dict[str, Any]) -> str:
    runs = [
        f"{name}-{seed} ({run['steps'] / 1e6:.1f} M)"
        for name, curve in document["curves"].items()
        for seed, run in curve["runs"].items()
        if run["steps"] < run["planned_steps"]
    ]
    return f" Unfinished, shown only in the plots: {', '.join(runs)}." if runs else ""


def _flag(size: str) -> str:
    return " --quick" if size == "quick" else ""
