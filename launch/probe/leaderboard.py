"""The leaderboard: results of cores on tasks as text, Markdown, JSON and a heat map."""

import json
from pathlib import Path
from typing import Any

from ..metrics.provenance import machine
from .run import RESULT

Results = dict[tuple[str, str], dict[str, Any]]
"""Results by (task, core)."""


def read_results(out: Path) -> Results:
    """All finished cells of a suite."""
    every = [
        json.loads(path.read_text()) for path in sorted(out.glob(f"*/*/{RESULT}")) if path.parent.name[:3] != "lr-"
    ]
    return {(result["task"], result["core"]): result for result in every}


def write_leaderboard(out: Path, minutes: float) -> None:
    """Write leaderboard.txt, .md, .json and .png of the finished cells."""
    results = read_results(out)
    if not results:
        return
    tasks, cores = ranked(results)
    (out / "leaderboard.txt").write_text(as_text(results, tasks, cores))
    (out / "leaderboard.md").write_text(as_markdown(results, tasks, cores))
    summary = {
        "minutes": minutes,
        "machine": machine(),
        "results": [results[key] for key in sorted(results)],
    }
    (out / "leaderboard.json").write_text(json.dumps(summary, indent=1))
    draw(out / "leaderboard.png", results, tasks, cores, minutes)


def above_chance(result: dict[str, Any]) -> float:
    """Accuracy scaled to 0 at chance and 1 for all correct."""
    chance = result["chance"]
    return (result["accuracy"] - chance) / (1 - chance)


def ranked(results: Results) -> tuple[list[str], list[str]]:
    """Tasks in order of appearance; cores by their mean scaled accuracy over their tasks, best first."""
    tasks = list(dict.fromkeys(task for task, _ in results))
    means: dict[str, float] = {}
    for core in {core for _, core in results}:
        own = [above_chance(result) for (_, other), result in results.items() if other == core]
        means[core] = sum(own) / len(own)
    return tasks, sorted(means, key=lambda core: (-means[core], core))


def _cell(result: dict[str, Any] | None) -> str:
    """An accuracy with half the width of its interval, in percent."""
    if result is None:
        return "-"
    return f"{100 * result['accuracy']:.1f} ±{50 * (result['high'] - result['low']):.1f}"


def rows(results: Results, tasks: list[str], cores: list[str]) -> list[list[str]]:
    """The table with its header: per core its parameters, milliseconds per update (mean over tasks), every task."""
    table = [["core", "parameters", "ms/update", *tasks]]
    table.append(["chance", "", "", *(f"{100 * _any(results, task)['chance']:.1f}" for task in tasks)])
    for core in cores:
        own = [result for (_, other), result in results.items() if other == core]
        sizes = sorted(result["parameters"] for result in own)
        size = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,}..{sizes[-1]:,}"
        speed = sum(result["ms_per_update"] for result in own) / len(own)
        table.append([core, size, f"{speed:.1f}", *(_cell(results.get((task, core))) for task in tasks)])
    return table


def _any(results: Results, task: str) -> dict[str, Any]:
    return next(result for (other, _), result in results.items() if other == task)


def as_text(results: Results, tasks: list[str], cores: list[str]) -> str:
    """Aligned columns."""
    table = rows(results, tasks, cores)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines) + "\n"


def as_markdown(results: Results, tasks: list[str], cores: list[str]) -> str:
    """A table of a Markdown page."""
    heading, *table = rows(results, tasks, cores)
    lines = [heading, ["---"] * len(heading), *table]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


def draw(path: Path, results: Results, tasks: list[str], cores: list[str], minutes: float) -> None:
    """The heat map: 0 is chance, 1 is all correct."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    nothing = float("nan")
    values = [
        [above_chance(results[task, core]) if (task, core) in results else nothing for task in tasks] for core in cores
    ]
    figure = Figure(figsize=(2.5 + 0.75 * len(tasks), 1.8 + 0.36 * len(cores)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right")
    axes.set_yticks(range(len(cores)), cores)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = "" if value != value else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="black" if value > 0.6 else "white")
    axes.set_title(f"accuracy above chance (1: all correct), {minutes:g} min each", fontsize=9)
    figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)
