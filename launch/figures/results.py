"""Results of a figure's runs as one JSON document, and their plot.

In a figure with tasks, the score of a run is MMER of Morad et al. 2023 (POPGym): the maximum over training of the mean
return of episodes, here over the rows of metrics. Tables compare only finished runs; curves also show unfinished ones.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
from numpy.typing import NDArray

from ..compare.command import STYLES
from ..compare.statistics import Estimate, interquartile_mean_of
from ..config.plain import differences
from ..config.run_config import RunConfig
from ..metrics.provenance import provenance
from ..metrics.rows import read_log
from .figure import Curve, Figure, FigureRun

POINTS = 120  # Maximum number of points of a curve
DPI = 110
_CUT = re.compile(r"(.+?)-(\d+)(-[a-z]+)?")  # Name of a curve at one cut of the gradient: core, steps, variant


def collect(figure: Figure, size: str, runs: Sequence[FigureRun], recorded: dict[str, Any]) -> dict[str, Any]:
    """Collect the results of all started runs, with the paper's results.

    `recorded` is an earlier document of the figure, or {}. A run in it whose settings are no longer the curve's, or
    that a later run replaces, moves to `replaced` without its points. Other runs in it remain unchanged if their
    directory is not here (on another machine, or deleted), or if the run here is unfinished and has fewer steps.
    """
    setting = figure.settings[size]
    curves: dict[str, Any] = {}
    replaced: list[dict[str, Any]] = list(recorded.get("replaced", []))
    for name in outdated(figure, size, recorded):
        old = recorded["curves"][name]
        replaced += [_without_points(name, seed, run, old["command"]) for seed, run in old["runs"].items()]
    for curve in setting.curves:
        entry: dict[str, Any] = recorded.get("curves", {}).get(curve.name, {})
        entry = (entry if entry and _is_of(curve, entry) else {"runs": {}}) | {"command": _command(curve)}
        if curve.task:
            entry |= {"core": curve.core, "task": curve.task, "window": curve.config.log_every}
        by_seed: dict[str, Any] = dict(entry["runs"])
        for run in (run for run in runs if run.curve == curve and run.rows()):
            now, before = _run(run), by_seed.get(str(run.seed))
            if not before or now["steps"] >= min(before["steps"], now["planned_steps"]):
                if before and before.get("begun") != now["begun"]:
                    replaced.append(_without_points(curve.name, str(run.seed), before, entry["command"]))
                by_seed[str(run.seed)] = now
                entry = entry | {"settings": _settings(curve)}
        if by_seed:
            curves[curve.name] = entry | {"runs": dict(sorted(by_seed.items(), key=lambda run: int(run[0])))}
    return provenance() | {
        "figure": figure.name,
        "size": size,
        "measure": figure.measure,
        "published": [asdict(line) for line in figure.published],
        "source": figure.source,
        "curves": curves,
        "replaced": replaced,
    }


def _without_points(curve: str, seed: str, run: dict[str, Any], command: str) -> dict[str, Any]:
    return {"curve": curve, "seed": seed, "command": command} | {k: v for k, v in run.items() if k != "curve"}


def outdated(figure: Figure, size: str, recorded: dict[str, Any]) -> list[str]:
    """Return the curves of an earlier document that `collect` omits because their settings differ."""
    curves, entries = {curve.name: curve for curve in figure.settings[size].curves}, recorded.get("curves", {})
    return [name for name, entry in entries.items() if name not in curves or not _is_of(curves[name], entry)]


def _is_of(curve: Curve, entry: dict[str, Any]) -> bool:
    """Whether a recorded curve has the settings of `curve`; arguments are not enough, since presets change. Old
    documents contain only the command."""
    settings = entry.get("settings")
    return entry["command"] == _command(curve) if settings is None else settings == _settings(curve)


def _command(curve: Curve) -> str:
    return " ".join(("rl-train", *curve.arguments))


def _settings(curve: Curve) -> dict[str, Any]:
    """Values of the command that differ from the defaults, by dotted name, in JSON types."""
    changed = {name: now for name, _, now in differences(RunConfig(), curve.config)}
    return json.loads(json.dumps(changed))


def reached(document: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Mean of the evaluations and number of seeds by curve; in a figure with tasks, by core: the interquartile mean of
    the scores, and the seeds of the task with the fewest."""
    curves = document["curves"]
    if any("task" in curve for curve in curves.values()):
        seeds = [(curve["core"], len(curve["runs"])) for curve in curves.values()]
        ranked = ranking(scores(document))
        return {core: (mean.value, min(count for name, count in seeds if name == core)) for core, mean in ranked}
    values = {
        name: [run["evaluation"]["mean"] for run in curve["runs"].values() if run["evaluation"]]
        for name, curve in curves.items()
    }
    return {name: (float(np.mean(means)), len(means)) for name, means in values.items() if means}


def _run(run: FigureRun) -> dict[str, Any]:
    rows = run.rows()
    return {
        "steps": rows[-1]["step"],
        "planned_steps": run.curve.steps,
        "seconds": round(float(rows[-1]["wall_s"]), 1),
        "begun": datetime.fromtimestamp(rows[0]["time"], UTC).isoformat(timespec="seconds"),
        "curve": _curve(run),
        "evaluation": _measured(run.evaluation(), run.figure.measure) if run.evaluation_file.exists() else None,
    }


def _curve(run: FigureRun) -> dict[str, list[float]]:
    """Last step and mean measure of each of at most POINTS parts; for a population, over all its members."""
    measure = f"episode/{run.figure.measure}"
    members = sorted((run.folder / "members").glob("*/metrics.jsonl"))
    rows = [row for file in members for row in read_log(file)] if members else run.rows()
    rows = sorted((row for row in rows if measure in row), key=lambda row: row["step"])
    parts = [part for part in np.array_split(np.arange(len(rows)), POINTS) if len(part)]
    return {
        "step": [rows[part[-1]]["step"] * max(1, len(members)) for part in parts],
        run.figure.measure: [round(float(np.mean([rows[i][measure] for i in part])), 4) for part in parts],
    }


def _measured(evaluation: dict[str, Any], measure: str) -> dict[str, Any]:
    estimate = evaluation["all"][measure]
    return {key: estimate[key] for key in ("mean", "low", "high")} | {
        "episodes": evaluation["all"]["episodes"],
        "step": evaluation["step"],
        "weights_step": evaluation.get("weights_step", evaluation["step"]),
    }


Scores = dict[str, dict[str, NDArray[np.float64]]]


def scores(document: dict[str, Any]) -> Scores:
    """Return the scores [seeds] of finished runs, by core and task."""
    result: Scores = {}
    for curve in document["curves"].values():
        runs = [run for run in curve["runs"].values() if run["steps"] >= run["planned_steps"] and run["curve"]["step"]]
        values = np.array([score(run, document["measure"], curve.get("window", 1)) for run in runs])
        if runs:
            result.setdefault(curve["core"], {})[curve["task"]] = values
    return result


def score(run: dict[str, Any], measure: str, window: int) -> float:
    """MMER of a run: the maximum, over windows of about `window` steps, of the mean weighted by steps. On a slow
    machine, each row covers fewer steps, and its larger noise would raise the maximum."""
    steps, values = np.array(run["curve"]["step"]), np.array(run["curve"][measure])
    spans = np.diff(steps, prepend=0)
    windows = (steps - 1) // window
    return float(max(np.average(values[windows == k], weights=spans[windows == k]) for k in np.unique(windows)))


def tasks_of(document: dict[str, Any]) -> list[str]:
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
    tasks, steps = len(tasks_of(document)), max(run["planned_steps"] for _, run in runs)
    count = f"{tasks} task{'s' * (tasks > 1)}, {steps / 1e6:.3g} M steps"
    return f"{count}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"


def draw(document: dict[str, Any], title: str, file: Path) -> None:
    """Plot the mean of every curve, a band from lowest to highest seed, and the paper's results, except in an easier
    variant. Each task has a panel, after one with the interquartile means, and each CUT of curves CORE-CUT, whose
    gradients are cut every CUT steps."""
    curves, quick = document["curves"], document["size"] == "quick"
    with_tasks = any("task" in curve for curve in curves.values())
    if with_tasks:
        named = {name: (curve["task"], curve["core"]) for name, curve in curves.items()}
        groups = {task: {x: core for x, (of, core) in named.items() if of == task} for task in tasks_of(document)}
        title = f"{title}{', smaller variant' if quick else ''}: {extent(document)}"
    else:
        groups = {f"gradients cut every {cut} steps" if cut else "": names for cut, names in panels(curves).items()}
        title = f"{title}{', easier variant' if quick else ''}"
    labels = list(dict.fromkeys(label for names in groups.values() for label in names.values()))
    styles = dict(zip(labels, itertools.cycle(STYLES)))
    count = len(groups) + with_tasks
    columns = min(3 if with_tasks else 2, count)
    rows = -(-count // columns)
    size = (7.5, 4.5) if count == 1 else (4.6 * columns, 3.4 * rows)
    figure = matplotlib.figure.Figure(size, layout="constrained")
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


def panels(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Labels of the curves by panel: CORE in the panel CUT for a curve CORE-CUT, else all in one panel ""."""
    matches = {name: _CUT.fullmatch(name) for name in names}
    by_cut: dict[str, dict[str, str]] = {}
    for name, match in matches.items():
        if match:
            by_cut.setdefault(match[2], {})[name] = match[1] + (match[3] or "")
    if len(by_cut) < 2 or None in matches.values():
        return {"": {name: name for name in matches}}
    return dict(sorted(by_cut.items(), key=lambda panel: -int(panel[0])))


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
