"""Runs to compare, from run directories, directories of several runs, or URLs; only text files are read."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fsspec.core import url_to_fs

from ...base.errors import EngramError, refuse, user_errors
from ..metrics.rows import Array, Table, parse_log, series, table_of
from ..run.config import RunConfig
from ..run.run_directory import CONFIG
from ..run.settings.plain import flat_settings
from ..run.urls import first_line, redacted

DEPTH = 4  # Folders below RUN that are searched for configurations
METRICS = "metrics.jsonl"


class LoadedRun(NamedTuple):
    """A run's settings and metrics."""

    name: str  # Path or URL, without secrets
    settings: dict[str, Any]  # Settings by dotted name; defaults for those that the run has not saved
    tables: list[Table]  # Metrics of the run, then of every member of a population

    @property
    def last_step(self) -> float:
        """Steps of the newest row."""
        return max((float(table["step"][-1]) for table in self.tables[:1] if len(table["step"])), default=0.0)

    def series(self, metric: str) -> tuple[Array, Array]:
        """Steps [K] and values [K] of a metric; for a population without the metric the mean of its members."""
        own, *members = (series(table, metric) for table in self.tables)
        if len(own[0]) or not members:
            return own
        members = [each for each in members if len(each[0])]
        if not members:
            return own
        steps = max(members, key=lambda each: len(each[0]))[0]
        values = np.mean([np.interp(steps, *each) for each in members], 0)
        return steps * (len(self.tables) - 1), values


def load(places: Sequence[str]) -> list[LoadedRun]:
    """All runs at these paths and URLs. Raises EngramError for one without runs, or one that cannot be read."""
    defaults = dict(flat_settings(RunConfig()))
    loaded: dict[str, LoadedRun] = {}
    for place in places:
        try:
            files, root = url_to_fs(place)
            root = root.rstrip("/")
            configs = [file for file in files.find(root, maxdepth=DEPTH) if file.endswith(f"/{CONFIG}")]
            folders = sorted((file.removesuffix(f"/{CONFIG}") for file in configs), key=_natural)
            name = redacted(place).rstrip("/")
            runs = [_read(files, folder, name + folder.removeprefix(root), defaults) for folder in folders]
        except EngramError:
            raise
        except Exception as problem:  # each kind of store raises different exceptions
            raise EngramError(f"{redacted(place)} cannot be read: {first_line(problem, place)}") from problem
        refuse(not runs, f"{redacted(place)} contains no run; expected: a run directory, or a folder or URL of some")
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
