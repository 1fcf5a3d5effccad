"""Runs to compare, from directories or URLs, grouped by curve and environment: runs of one curve differ only in their
seeds, unless `--by` selects other settings."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import advice
from ..config.command_line import settings_of
from ..config.run_config import PASSIVE, RESUMABLE, RunConfig
from ..config.settings.plain import flat_settings
from ..config.urls import open_store, redacted, store_errors
from ..metrics.rows import Array, Table, final_value, parse_log, series_of_run, table_of
from ..runs.directory import CONFIG

DEPTH = 4  # Depth to which RUN is searched for configurations
METRICS = "metrics.jsonl"


class LoadedRun(NamedTuple):
    """A run's settings and metrics."""

    name: str  # Path or URL, without secrets
    settings: dict[str, Any]  # Settings by dotted name; defaults for those that the run has not saved
    tables: list[Table]  # Metrics of the run, then of every member of a population

    @property
    def last_step(self) -> float:
        """Steps in the last row."""
        return max((float(table["step"][-1]) for table in self.tables[:1] if len(table["step"])), default=0.0)

    def series(self, metric: str) -> tuple[Array, Array]:
        """`series_of_run` of the metrics."""
        return series_of_run(self.tables, metric)


def load(sources: Sequence[str]) -> list[LoadedRun]:
    """Load all runs at these paths and URLs. Raises EngramError for one without runs or one that cannot be read."""
    defaults = dict(flat_settings(RunConfig()))
    loaded: dict[str, LoadedRun] = {}
    for source in sources:
        with store_errors(f"{redacted(source)} cannot be read", source):
            files, root = open_store(source)
            configs = [file for file in files.find(root, maxdepth=DEPTH) if file.endswith(f"/{CONFIG}")]
            folders = sorted((file.removesuffix(f"/{CONFIG}") for file in configs), key=_natural)
            name = redacted(source).rstrip("/")
            runs = [_read(files, folder, name + folder.removeprefix(root), defaults) for folder in folders]
        refuse(not runs, f"{redacted(source)} contains no run; expected: a run directory, or a folder or URL of runs")
        loaded |= {run.name: run for run in runs}
    return list(loaded.values())


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _read(files: Any, folder: str, name: str, defaults: dict[str, Any]) -> LoadedRun:
    with user_errors(f"{name}/{CONFIG} is damaged"):
        settings = dict(flat_settings(tomllib.loads(files.cat_file(f"{folder}/{CONFIG}").decode())))
    paths = [f"{folder}/{METRICS}"]
    if settings.get("population"):
        paths += [f"{folder}/members/{member}/{METRICS}" for member in range(settings["population"])]
    tables = [table_of(parse_log(files.cat_file(path) if files.exists(path) else b"")) for path in paths]
    return LoadedRun(name, defaults | settings, tables)


POINTS = 100  # Number of points of a curve


class Cell(NamedTuple):
    """Runs of one curve in one environment."""

    seeds: list[int]
    finals: Array  # [R]: mean of the metric over the last tenth of the steps up to the environment's `end`
    values: Array  # [R, S]: metric at the environment's `steps`


class Environment(NamedTuple):
    """Axes and scale that the curves of one environment share."""

    end: float  # Steps that all runs in the environment have reached
    steps: Array  # [S]: steps of the points of the curves


class Comparison(NamedTuple):
    """Curves in one or more environments."""

    metric: str
    environments: dict[str, Environment]
    cells: dict[str, dict[str, Cell]]  # By curve and environment
    notes: list[str]  # Remarks for the reader of the comparison

    def strata(self, curve: str, among: Sequence[str]) -> list[Array]:
        """Final scores [R] of a curve by environment, scaled to 0..1 over all curves if `among` has several of them."""
        finals = {name: self.cells[curve][name].finals for name in among}
        return [self._scale(*item) for item in finals.items()] if len(among) > 1 else list(finals.values())

    def _scale(self, environment: str, finals: Array) -> Array:
        every = np.concatenate([cells[environment].finals for cells in self.cells.values() if environment in cells])
        low, high = every.min(), every.max()
        return (finals - low) / (high - low) if high > low else np.full_like(finals, 0.5)

    def shared(self, *curves: str) -> list[str]:
        """Environments in which all these curves have runs."""
        return [name for name in self.environments if all(name in self.cells[curve] for curve in curves)]


def compare(runs: Sequence[LoadedRun], by: Sequence[str], metric: str) -> Comparison:
    """Group runs into curves. Raises EngramError for an unknown setting or metric."""
    _check_metric(runs, metric)
    by = [_setting(name, runs) for name in by]
    where = [name for name in _varying(runs) if name.startswith("env_args.") and name not in by]
    places: dict[str, list[LoadedRun]] = {}
    for run in runs:
        places.setdefault(" ".join([run.settings["env"], *(_pair(run, name) for name in where)]), []).append(run)
    # Presets differ between environments: settings equal in all runs of each environment do not distinguish curves.
    varied = dict.fromkeys(name for together in places.values() for name in _varying(together))
    which = by or _distinguishing(list(varied), places) or ["agent.core"]
    others = sorted(set(varied) - set(which))
    notes = [f"runs also differ in {', '.join(others)}"] if others else []
    curves: dict[str, dict[str, list[LoadedRun]]] = {}
    for place, together in places.items():
        for run in together:
            if len(run.series(metric)[0]):
                curves.setdefault(_label(run, which), {}).setdefault(place, []).append(run)
            else:
                notes.append(f"left out because it has no {metric} yet: {run.name}")
    return _measured(curves, metric, notes)


def _measured(curves: dict[str, dict[str, list[LoadedRun]]], metric: str, notes: list[str]) -> Comparison:
    environments: dict[str, Environment] = {}
    cells: dict[str, dict[str, Cell]] = {}
    for name in dict.fromkeys(name for places in curves.values() for name in places):
        together = [run for places in curves.values() for run in places.get(name, [])]
        end = min(run.last_step for run in together)
        if end < max(run.last_step for run in together):
            notes.append(f"{name}: compared at {end:,.0f} steps, the last step of the shortest run")
        begin = min(max(run.series(metric)[0][0] for run in together), end)
        environments[name] = Environment(end, np.linspace(begin, end, POINTS))
        for curve, places in curves.items():
            if name in places:
                cell = _cell(places[name], metric, environments[name])
                if cell.seeds:
                    cells.setdefault(curve, {})[name] = cell
                if len(set(cell.seeds)) < len(cell.seeds):
                    notes.append(f"{curve} in {name}: runs with equal seeds are not independent")
                if len(cell.seeds) < len(places[name]):
                    notes.append(f"{curve} in {name}: a run without {metric} up to {end:,.0f} steps is left out")
    refuse(not cells, f"no run has {metric} yet")
    return Comparison(metric, environments, cells, notes)


def _cell(runs: Sequence[LoadedRun], metric: str, environment: Environment) -> Cell:
    seeds: list[int] = []
    finals: list[float] = []
    values: list[Array] = []
    for run in runs:
        steps, series = run.series(metric)
        final = final_value(steps, series, environment.end)
        if np.isfinite(final):
            seeds.append(run.settings["seed"])
            finals.append(final)
            values.append(smoothed(steps, series, environment.steps))
    return Cell(seeds, np.array(finals), np.array(values))


def smoothed(steps: Array, values: Array, at: Array) -> Array:
    """Values [S] at steps `at` [S] of a series [K]: means over equal intervals of steps, interpolated linearly."""
    part = np.searchsorted(at, steps)
    parts = np.unique(part)
    means = [(steps[part == k].mean(), values[part == k].mean()) for k in parts]
    return np.interp(at, *np.array(means).T)


def _varying(runs: Sequence[LoadedRun]) -> list[str]:
    """Settings other than the seed that differ between runs and affect learning."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    passive = (RESUMABLE | PASSIVE) - {"start_from"}
    return [
        name
        for name in names
        if name not in passive and any(run.settings.get(name) != runs[0].settings.get(name) for run in runs)
    ]


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
    if dotted_name := names.get(requested) or (ends[0] if len(ends) == 1 else ""):
        return dotted_name
    raise EngramError(f"by names {name!r}, which is not a setting of the runs; {advice(requested, list(names))}")


def _check_metric(runs: Sequence[LoadedRun], metric: str) -> None:
    names = dict.fromkeys(name for run in runs for table in run.tables for name in table)
    if metric not in names:
        if not names.keys() - {"step", "time", "wall_s"}:
            raise EngramError(f"{runs[0].name} has no metrics yet")
        raise EngramError(f"metric is {metric!r}, which no run has; {advice(metric, list(names))}")


def _label(run: LoadedRun, names: Sequence[str]) -> str:
    pairs = [_pair(run, name) for name in names]
    return pairs[0].partition("=")[2] if len(pairs) == 1 else " ".join(pairs)


def _pair(run: LoadedRun, name: str) -> str:
    value = run.settings.get(name)
    text = "unset" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{name.rpartition('.')[2]}={text}"
