"""Plot a figure's results: the mean of every curve, a band from lowest to highest seed, and the paper's"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .results import POINTS, extent, ranking, scores, tasks_of

DPI = 110


def draw(document: dict[str, Any], title: str, file: Path) -> None:
    """Plot the results in a document.

    In a figure with tasks, the first panel has the interquartile means, and each task has a panel. An easier variant
    has no lines for the paper, since its task differs.
    """
    curves, quick = document["curves"], document["size"] == "quick"
    with_tasks = any("task" in curve for curve in curves.values())
    if with_tasks:
        named = {name: (curve["task"], curve["core"]) for name, curve in curves.items()}
        groups = {task: {x: core for x, (of, core) in named.items() if of == task} for task in tasks_of(document)}
        title = f"{title}{', smaller variant' if quick else ''}: {extent(document)}"
    else:
        groups = {"": {name: name for name in curves}}
        title = f"{title}{', easier variant' if quick else ''}"
    labels = list(dict.fromkeys(label for names in groups.values() for label in names.values()))
    styles = {label: curve_style(index) for index, label in enumerate(labels)}
    count = len(groups) + with_tasks
    columns = min(3 if with_tasks else 2, count)
    rows = -(-count // columns)
    size = (7.5, 4.5) if count == 1 else (4.6 * columns, 3.4 * rows)
    figure = Figure(size, layout="constrained")
    grid: Any = figure.subplots(rows, columns, sharey=not with_tasks, squeeze=False)  # pyright: ignore
    places = iter(grid.flat)
    if with_tasks:
        _draw_ranking(next(places), document, styles)
    for name, names in groups.items():
        axes = next(places)
        _draw_panel(axes, document, names, styles)
        axes.set_title(name, fontsize=10)
    for axes in places:
        axes.remove()
    lines = {str(x.get_label()): x for axes in figure.axes for x in axes.get_legend_handles_labels()[0]}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize=8)
    figure.suptitle(title)
    figure.savefig(file, dpi=DPI, metadata={"Software": None})  # pyright: ignore[reportUnknownMemberType]


def _draw_panel(axes: Any, document: dict[str, Any], names: dict[str, str], styles: dict[str, tuple[str, str]]) -> None:
    measure = document["measure"]
    for name, label in names.items():
        color, dashes = styles[label]
        curves = [run["curve"] for run in document["curves"][name]["runs"].values() if run["curve"]["step"]]
        if not curves:  # no episode has ended yet
            continue
        steps = np.linspace(0, min(curve["step"][-1] for curve in curves), POINTS)[1:]
        values = np.array([np.interp(steps, curve["step"], curve[measure]) for curve in curves])
        axes.plot(steps / 1e6, values.mean(0), dashes, color=color, label=label)
        axes.fill_between(steps / 1e6, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
    for line in [] if document["size"] == "quick" else document.get("published", []):
        axes.axhline(line["value"], color="black", linestyle=":", linewidth=0.8)
        text, position = f"{line['label']} {line['value']:g} in the paper", (1.0, line["value"])
        axes.annotate(text, position, xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
    axes.set(xlabel="million environment steps", ylabel=f"{measure} in training")


def _draw_ranking(axes: Any, document: dict[str, Any], styles: dict[str, tuple[str, str]]) -> None:
    means = ranking(scores(document))
    for height, (core, mean) in enumerate(reversed(means)):
        error = None if np.isnan(mean.low) else [[mean.value - mean.low], [mean.high - mean.value]]
        axes.errorbar(mean.value, height, xerr=error, fmt="o", color=styles[core][0], capsize=3)
    axes.set_yticks(range(len(means)), [core for core, _ in reversed(means)], fontsize=8)
    axes.set_title("interquartile mean of MMER", fontsize=10)


def curve_style(index: int) -> tuple[str, str]:
    """Color and line style of a curve, distinct for the first thirty."""
    return f"C{index % 10}", ("-", "--", ":")[index // 10 % 3]
