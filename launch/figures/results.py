"""Results of a figure's runs as one JSON document.

In a figure with tasks, every core has a score for every task, and the interquartile mean over tasks. The score of a run
is MMER of Morad et al. 2023 (POPGym): the maximum over training of the mean return of episodes, here over the rows of
metrics. Tables compare only finished runs; curves also show unfinished ones.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare.statistics import Estimate, interquartile_mean_of
from ..config.run_config import RunConfig
from ..config.settings.plain import differences
from ..metrics.provenance import provenance
from ..metrics.rows import read_log
from .figure import Curve, Figure, FigureRun

POINTS = 120  # Maximum number of points of a curve


def collect(figure: Figure, size: str, runs: Sequence[FigureRun], recorded: dict[str, Any]) -> dict[str, Any]:
    """Collect curves, evaluations, wall times and steps of all started runs, with the paper's results.

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
        entry = (entry if entry and _is_of(curve, entry) else {"runs": {}}) | {"command": curve.command}
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
        "published": [{"label": p.label, "value": p.value, "note": p.note} for p in figure.published],
        "source": figure.source,
        "curves": curves,
        "replaced": replaced,
    }


def _without_points(curve: str, seed: str, run: dict[str, Any], command: str) -> dict[str, Any]:
    return {"curve": curve, "seed": seed, "command": command} | {k: v for k, v in run.items() if k != "curve"}


def outdated(figure: Figure, size: str, recorded: dict[str, Any]) -> list[str]:
    """Return the curves of an earlier document that `collect` omits because their settings differ."""
    curves = {curve.name: curve for curve in figure.settings[size].curves}
    return [
        name
        for name, entry in recorded.get("curves", {}).items()
        if name not in curves or not _is_of(curves[name], entry)
    ]


def _is_of(curve: Curve, entry: dict[str, Any]) -> bool:
    """Whether a recorded curve has the settings of `curve`; comparing arguments is not enough: presets change.

    Old documents contain only the command."""
    settings = entry.get("settings")
    return entry["command"] == curve.command if settings is None else settings == _settings(curve)


def _settings(curve: Curve) -> dict[str, Any]:
    """Values of the command that differ from the defaults, by dotted name, in JSON types."""
    changed = {name: now for name, _, now in differences(RunConfig(), curve.config)}
    return json.loads(json.dumps(changed))


def reached(document: dict[str, Any]) -> dict[str, float]:
    """Mean of the evaluations by curve; in a figure with tasks, the interquartile mean of the scores by core."""
    if any("task" in curve for curve in document["curves"].values()):
        return {core: mean.value for core, mean in ranking(scores(document))}
    values = {
        name: [run["evaluation"]["mean"] for run in curve["runs"].values() if run["evaluation"]]
        for name, curve in document["curves"].items()
    }
    return {name: float(np.mean(means)) for name, means in values.items() if means}


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
