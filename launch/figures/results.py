"""Results of a figure's runs as one JSON document and one plot."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.provenance import provenance
from ..metrics.rows import read_log
from ..run.config import RunConfig
from ..run.settings.plain import differences
from . import tasks
from .figure import Curve, Figure
from .runs import FigureRun

_CUT = re.compile(r"(.+?)-(\d+)(-[a-z]+)?")  # Name of a curve at one cut of the gradient: core, steps, variant
POINTS = 120  # Maximum points of a curve
DPI = 110
MANY = 6  # Number of curves above which the legend is next to the plot


def collect(figure: Figure, size: str, runs: Sequence[FigureRun], recorded: dict[str, Any]) -> dict[str, Any]:
    """Collect curves, evaluations, wall times and frames of all started runs, with the paper's results.

    A recorded run whose settings are no longer the curve's, or that a later run replaces, moves without its curve to
    `replaced`. Runs that are only in `recorded`, an earlier document of the figure ({} if there is none), remain
    unchanged if their settings are still the curve's: their directories may be on another machine, or deleted. So do
    those with more steps than the current runs.
    """
    setting = figure.settings[size]
    curves: dict[str, Any] = {}
    replaced: list[dict[str, Any]] = list(recorded.get("replaced", []))
    for name in outdated(figure, size, recorded):
        old = recorded["curves"][name]
        replaced += [_replaced(name, seed, run, old["command"]) for seed, run in old["runs"].items()]
    for curve in setting.curves:
        entry: dict[str, Any] = recorded.get("curves", {}).get(curve.name, {})
        entry = (entry if entry and _is_of(curve, entry) else {"runs": {}}) | {"command": _command(curve)}
        if curve.task:
            entry |= {"core": curve.core, "task": curve.task, "window": curve.config.log_every}
        by_seed: dict[str, Any] = dict(entry["runs"])
        for run in (run for run in runs if run.curve == curve and run.rows()):
            now, before = _run(run), by_seed.get(str(run.seed))
            if not before or now["steps"] >= before["steps"]:
                if before and before.get("begun") != now["begun"]:
                    replaced.append(_replaced(curve.name, str(run.seed), before, entry["command"]))
                by_seed[str(run.seed)] = now
                entry = entry | {"settings": _settings(curve)}
        if by_seed:
            curves[curve.name] = entry | {"runs": dict(sorted(by_seed.items(), key=lambda run: int(run[0])))}
    return provenance() | {
        "figure": figure.name,
        "size": size,
        "measure": figure.measure,
        "published": [{"label": p.label, "value": p.value, "note": p.note} for p in figure.published],
        "source": figure.source,
        "curves": curves,
        "replaced": replaced,
    }


def _replaced(curve: str, seed: str, run: dict[str, Any], command: str) -> dict[str, Any]:
    """A recorded run without its curve."""
    return {"curve": curve, "seed": seed, "command": command} | {k: v for k, v in run.items() if k != "curve"}


def outdated(figure: Figure, size: str, recorded: dict[str, Any]) -> list[str]:
    """The curves of an earlier document that `collect` omits because they have other settings."""
    curves = {curve.name: curve for curve in figure.settings[size].curves}
    return [
        name
        for name, entry in recorded.get("curves", {}).items()
        if name not in curves or not _is_of(curves[name], entry)
    ]


def _is_of(curve: Curve, entry: dict[str, Any]) -> bool:
    """Whether a recorded curve has this one's settings, independent of the arguments; a preset's values may change. Old
    documents contain the command only."""
    settings = entry.get("settings")
    return entry["command"] == _command(curve) if settings is None else settings == _settings(curve)


def _command(curve: Curve) -> str:
    return " ".join(("rl-train", *curve.arguments))


def _settings(curve: Curve) -> dict[str, Any]:
    """Values of the command that differ from the defaults, by dotted name, in JSON types."""
    changed = {name: now for name, _, now in differences(RunConfig(), curve.config)}
    return json.loads(json.dumps(changed))


def reached(document: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """By curve: the mean over seeds of the evaluations and the number of seeds; without unfinished curves. In a figure
    with tasks: by core, the interquartile mean of its scores and their number."""
    if any("task" in curve for curve in document["curves"].values()):
        scores = tasks.scores(document)
        return {core: (mean.value, sum(map(len, scores[core].values()))) for core, mean in tasks.ranking(scores)}
    means: dict[str, tuple[float, int]] = {}
    for name, curve in document["curves"].items():
        values = [run["evaluation"]["mean"] for run in curve["runs"].values() if run["evaluation"]]
        if values:
            means[name] = (float(np.mean(values)), len(values))
    return means


def draw(document: dict[str, Any], title: str, file: Path) -> None:
    """Plot the figure: each curve's mean, a band from lowest to highest seed, the paper's results as lines.

    Curves called CORE-NUMBER, one number for each cut of the gradient, have a panel for each number. An easier variant
    has no lines, since it is another task. A figure with tasks: see tasks.py.
    """
    if any("task" in curve for curve in document["curves"].values()):
        tasks.draw(document, _titled(title, document), file)
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = panels(document["curves"])
    labels = list(dict.fromkeys(label for names in groups.values() for label in names.values()))
    styles = {label: tasks.curve_style(number) for number, label in enumerate(labels)}
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    size = (7.5, 4.5) if len(groups) == 1 else (10.5, 3.4 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for axes, (cut, names) in zip(grid.flat, groups.items(), strict=False):
        _draw_panel(axes, document, names, styles)
        axes.set_title(f"gradients cut every {cut} steps" if cut else _titled(title, document), fontsize=10)
    for axes in grid.flat[len(groups) :]:
        axes.remove()
    if len(groups) > 1:
        figure.suptitle(_titled(title, document))
    low, high = grid[0, 0].get_ylim()
    grid[0, 0].set_ylim(low, high + 0.06 * (high - low))  # room for the text above the highest line
    figure.tight_layout()
    figure.savefig(file, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


def panels(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Curves by panel, and the label of each: CORE in the panel CUT for CORE-CUT, else all in one panel called ""."""
    every = {name: name for name in names}
    by_cut: dict[str, dict[str, str]] = {}
    for name in every:
        match = _CUT.fullmatch(name)
        if match is None:
            return {"": every}
        by_cut.setdefault(match[2], {})[name] = match[1] + (match[3] or "")
    return {cut: by_cut[cut] for cut in sorted(by_cut, key=int, reverse=True)} if len(by_cut) > 1 else {"": every}


def _titled(title: str, document: dict[str, Any]) -> str:
    if document["size"] != "quick":
        return title
    return f"{title}, {'smaller' if 'task' in next(iter(document['curves'].values())) else 'easier'} variant"


def _draw_panel(axes: Any, document: dict[str, Any], names: dict[str, str], styles: dict[str, tuple[str, str]]) -> None:
    """The curves of one panel; a label has the same color and line in all panels."""
    measure = document["measure"]
    for name, label in names.items():
        color, dashes = styles[label]
        runs = [run for run in document["curves"][name]["runs"].values() if run["curve"]["step"]]
        if not runs:  # no episode has ended yet
            continue
        end = min(run["curve"]["step"][-1] for run in runs)
        steps = np.linspace(0, end, POINTS)[1:]
        values = np.array([np.interp(steps, run["curve"]["step"], run["curve"][measure]) for run in runs])
        seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
        axes.plot(steps / 1e6, values.mean(0), dashes, color=color, label=f"{label}{seeds}")
        axes.fill_between(steps / 1e6, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
    for line in [] if document["size"] == "quick" else document["published"]:
        axes.axhline(line["value"], color="black", linestyle=":", linewidth=0.8)
        axes.annotate(
            f"{line['label']} {line['value']:g} in the paper",
            (1.0, line["value"]),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=7,
        )
    axes.set_xlabel("million environment steps")
    axes.set_ylabel(f"{measure} in training")
    if len(names) > MANY:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    elif axes.lines:
        axes.legend(loc="best", fontsize=8)


def _run(run: FigureRun) -> dict[str, Any]:
    rows = run.rows()
    evaluation = run.evaluation() if run.evaluation_file.exists() else None
    return {
        "steps": rows[-1]["step"],
        "planned_steps": run.curve.steps,
        "seconds": round(float(rows[-1]["wall_s"]), 1),
        "begun": datetime.fromtimestamp(rows[0]["time"], UTC).isoformat(timespec="seconds"),
        "curve": _curve(run),
        "evaluation": _measured(evaluation, run.figure.measure) if evaluation else None,
    }


def _curve(run: FigureRun) -> dict[str, list[float]]:
    """Steps and the measure, averaged into at most POINTS parts; for a population the mean of its members."""
    measure = f"episode/{run.figure.measure}"
    members = sorted((run.folder / "members").glob("*/metrics.jsonl"))
    rows = [row for file in members for row in read_log(file)] if members else run.rows()
    rows = sorted((row for row in rows if measure in row["metrics"]), key=lambda row: row["step"])
    parts = [part for part in np.array_split(np.arange(len(rows)), POINTS) if len(part)]
    return {
        "step": [rows[part[-1]]["step"] * max(1, len(members)) for part in parts],
        run.figure.measure: [round(float(np.mean([rows[i]["metrics"][measure] for i in part])), 4) for part in parts],
    }


def _measured(evaluation: dict[str, Any], measure: str) -> dict[str, Any]:
    """The measure's estimate in the results of rl-eval."""
    estimate = evaluation["all"][measure]
    return {key: estimate[key] for key in ("mean", "low", "high")} | {
        "episodes": evaluation["all"]["episodes"],
        "step": evaluation["step"],
        "weights_step": evaluation.get("weights_step", evaluation["step"]),
    }
