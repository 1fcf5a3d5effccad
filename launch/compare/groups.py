"""Runs to compare, from directories or URLs, grouped by curve and environment: runs of one curve differ only in their
seeds, unless `--by` selects other settings."""

import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import refuse, user_errors
from ...base.messages import advice
from ..config.command_line import settings_of
from ..config.run_config import PASSIVE, RESUMABLE, RunConfig
from ..config.settings.plain import flat_settings
from ..config.urls import open_store, redacted, store_errors
from ..metrics.rows import Array, Table, final_value, parse_log, series_of_run, table_of
from ..runs.directory import CONFIG

METRICS = "metrics.jsonl"
POINTS = 100  # Number of points of a curve


class LoadedRun(NamedTuple):
    """A run's settings and metrics."""

    name: str  # Path or URL, without secrets
    settings: dict[str, Any]  # Settings by dotted name; defaults for those that the run has not saved
    tables: list[Table]  # Metrics of the run, then of every member of a population


class Cell(NamedTuple):
    """Runs of one curve in one environment."""

    seeds: list[int]
    finals: Array  # [R]: mean of the metric over the last tenth of the steps that all runs have reached
    values: Array  # [R, S]: metric at the environment's steps


class Comparison(NamedTuple):
    """Curves in one or more environments."""

    metric: str
    environments: dict[str, Array]  # [S]: steps of the points of the curves, up to those that all runs have reached
    cells: dict[str, dict[str, Cell]]  # By curve and environment
    notes: list[str]  # Remarks for the reader of the comparison

    def strata(self, curve: str, among: Sequence[str]) -> list[Array]:
        """Final scores [R] of a curve by environment, scaled to 0..1 over all curves if `among` has several of them."""
        strata = [self.cells[curve][name].finals for name in among]
        for k, name in enumerate(among if len(among) > 1 else ()):
            every = np.concatenate([cells[name].finals for cells in self.cells.values() if name in cells])
            low, high = every.min(), every.max()
            strata[k] = (strata[k] - low) / (high - low) if high > low else np.full_like(strata[k], 0.5)
        return strata

    def shared(self, *curves: str) -> list[str]:
        """Environments in which all these curves have runs."""
        return [name for name in self.environments if all(name in self.cells[curve] for curve in curves)]


def load(sources: Sequence[str]) -> list[LoadedRun]:
    """Load all runs at these paths and URLs. Raises EngramError for one without runs or one that cannot be read."""
    defaults = dict(flat_settings(RunConfig()))
    loaded: dict[str, LoadedRun] = {}
    for source in sources:
        with store_errors(f"{redacted(source)} cannot be read", source):
            files, root = open_store(source)
            found = files.find(root, maxdepth=4)
            folders = sorted(file.removesuffix(f"/{CONFIG}") for file in found if file.endswith(f"/{CONFIG}"))
            name = redacted(source).rstrip("/")
            runs = [_read(files, folder, name + folder.removeprefix(root), defaults) for folder in folders]
        refuse(not runs, f"{redacted(source)} contains no run; expected: a run directory, or a folder or URL of runs")
        loaded |= {run.name: run for run in runs}
    return list(loaded.values())


def _read(files: Any, folder: str, name: str, defaults: dict[str, Any]) -> LoadedRun:
    with user_errors(f"{name}/{CONFIG} is damaged"):
        settings = dict(flat_settings(tomllib.loads(files.cat_file(f"{folder}/{CONFIG}").decode())))
    members = range(settings.get("population") or 0)
    paths = [f"{folder}/{METRICS}", *(f"{folder}/members/{member}/{METRICS}" for member in members)]
    tables = [table_of(parse_log(files.cat_file(path) if files.exists(path) else b"")) for path in paths]
    return LoadedRun(name, defaults | settings, tables)


def compare(runs: Sequence[LoadedRun], by: Sequence[str], metric: str) -> Comparison:
    """Group runs into curves. Raises EngramError for an unknown setting or metric."""
    metrics = dict.fromkeys(name for run in runs for table in run.tables for name in table)
    refuse(not metrics.keys() - {"step", "time", "wall_s"}, f"{runs[0].name} has no metrics yet")
    refuse(metric not in metrics, f"metric is {metric!r}, which no run has; {advice(metric, metrics)}")
    by = [_setting(name, runs) for name in by]
    where = [name for name in _varying(runs) if name.startswith("env_args.") and name not in by]
    places: dict[str, list[LoadedRun]] = {}
    for run in runs:
        places.setdefault(" ".join([run.settings["env"], *(_pair(run, name) for name in where)]), []).append(run)
    # Presets differ between environments: settings equal in all runs of each environment do not distinguish curves.
    varied = dict.fromkeys(name for together in places.values() for name in _varying(together))
    which = by or _distinguishing(list(varied), places) or ["agent.core"]
    others = sorted(set(varied) - set(which))
    comparison = Comparison(metric, {}, {}, [f"runs also differ in {', '.join(others)}"] if others else [])
    for place, together in places.items():
        _add_environment(comparison, place, together, which)
    refuse(not comparison.cells, f"no run has {metric} yet")
    return comparison


def _add_environment(comparison: Comparison, place: str, runs: Sequence[LoadedRun], which: Sequence[str]) -> None:
    """Add an environment with its cells to a comparison; the settings `which` distinguish curves."""
    metric, notes = comparison.metric, comparison.notes
    series = {run.name: series_of_run(run.tables, metric) for run in runs}
    notes += [f"left out because it has no {metric} yet: {run.name}" for run in runs if not len(series[run.name][0])]
    runs = [run for run in runs if len(series[run.name][0])]
    if not runs:
        return
    ends = [max(run.tables[0]["step"], default=0.0) for run in runs]
    if (end := min(ends)) < max(ends):
        notes.append(f"{place}: compared at {end:,.0f} steps, the last step of the shortest run")
    begin = min(max(series[run.name][0][0] for run in runs), end)
    comparison.environments[place] = points = np.linspace(begin, end, POINTS)
    finals = {run.name: final_value(*series[run.name], end) for run in runs}
    for curve in dict.fromkeys(_label(run, which) for run in runs):
        group = [run for run in runs if _label(run, which) == curve and np.isfinite(finals[run.name])]
        seeds = [run.settings["seed"] for run in group]
        if group:
            values = np.array([smoothed(*series[run.name], points) for run in group])
            cell = Cell(seeds, np.array([finals[run.name] for run in group]), values)
            comparison.cells.setdefault(curve, {})[place] = cell
        if len(set(seeds)) < len(seeds):
            notes.append(f"{curve} in {place}: runs with equal seeds are not independent")
    notes += [f"{name}: left out without {metric} up to {end:,.0f} steps" for name, x in finals.items() if np.isnan(x)]


def smoothed(steps: Array, values: Array, at: Array) -> Array:
    """Values [S] at steps `at` [S] of a series [K]: means over equal intervals of steps, interpolated linearly."""
    part = np.searchsorted(at, steps)
    means = [(steps[part == k].mean(), values[part == k].mean()) for k in np.unique(part)]
    return np.interp(at, *np.array(means).T)


def _varying(runs: Sequence[LoadedRun]) -> list[str]:
    """Settings other than the seed that differ between runs and affect learning."""
    passive = (RESUMABLE | PASSIVE) - {"start_from"}
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in passive)
    return [name for name in names if any(run.settings.get(name) != runs[0].settings.get(name) for run in runs)]


def _distinguishing(names: Sequence[str], places: dict[str, list[LoadedRun]]) -> list[str]:
    """A small subset of the settings that distinguishes as many curves; the core and the algorithm come first."""

    def curves(names: Sequence[str]) -> int:
        return sum(len({_label(run, names) for run in together}) for together in places.values())

    chosen: list[str] = []
    for name in sorted(names, key=lambda name: name not in ("agent.core", "learner.algorithm")):
        if curves([*chosen, name]) > curves(chosen):
            chosen.append(name)
    return chosen


def _setting(name: str, runs: Sequence[LoadedRun]) -> str:
    """Return the dotted name of a setting in `--by`, which may be a flag of `rl-train` or the end of the name."""
    dotted = {setting: setting for run in runs for setting in run.settings}
    names = {flag: ".".join(path) for flag, path in settings_of(RunConfig).items()} | dotted
    requested = name.removeprefix("--").replace("-", "_")
    ends = [setting for setting in dotted if setting.rpartition(".")[2] == requested]
    matches = [names[requested]] if requested in names else ends
    refuse(len(matches) != 1, f"by names {name!r}, which is not a setting of the runs; {advice(requested, names)}")
    return matches[0]


def _label(run: LoadedRun, names: Sequence[str]) -> str:
    pairs = [_pair(run, name) for name in names]
    return pairs[0].partition("=")[2] if len(pairs) == 1 else " ".join(pairs)


def _pair(run: LoadedRun, name: str) -> str:
    value = run.settings.get(name)
    text = "unset" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{name.rpartition('.')[2]}={text}"
