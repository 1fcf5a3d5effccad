"""A figure as a data file: its curves as flags of `rl-train`, seeds, measure and a paper's results.

docs/tutorials/figure.md describes the format. Adding a figure is adding a file to `data/`; `rl-reproduce FILE.toml`
reads one from anywhere.
"""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...base.messages import Span, above, check_name, check_span, check_whole
from ..run.command_line import UsageError
from ..run.config import RunConfig
from ..run.run_flags import parse_run
from ..run.trained import imitated

SETTINGS = ("full", "quick")
STOP = "A run ends at its `--total-steps`."
"""Stopping rule of a figure that names none."""
TEXTS = ("title", "paper", "place", "measure")
KEYS = (*TEXTS, "episodes", "evaluation", "published", *SETTINGS)
LINE_KEYS = ("label", "value", "note")
SETTING_KEYS = ("arguments", "seeds", "steps_per_second", "stop", "note", "other_runs", "tasks", "curves")


@dataclass(frozen=True)
class Published:
    """A number of the paper."""

    label: str
    value: float
    note: str


@dataclass(frozen=True)
class Curve:
    """One line of a figure: a core's settings, trained once for each seed."""

    name: str
    arguments: tuple[str, ...]
    """Words of `rl-train`, without seed and run directory."""
    core: str = ""
    """Key of the curve in a figure with tasks, whose curves are named CORE.TASK."""
    task: str = ""
    """Task of a figure with tasks."""

    @cached_property
    def config(self) -> RunConfig:
        """The configuration that the words stand for. Raises UsageError, also for an agent that imitates a player."""
        config = parse_run(self.arguments)
        if config.learner.imitate or (config.start_from and imitated(config.start_from)):
            raise UsageError(
                f"curve {self.name} imitates a player; allowed in a figure: agents that learn from rewards"
            )
        return config

    @property
    def steps(self) -> int:
        """Environment steps of one run, of all its members together."""
        return self.config.total_steps * self.config.num_members


@dataclass(frozen=True)
class Setting:
    """A figure at one size."""

    curves: tuple[Curve, ...]
    seeds: tuple[int, ...]
    steps_per_second: float | None
    """Of one core; None if it was not measured."""
    note: str
    stop: str
    """Stopping rule of its runs."""
    other_runs: tuple[str, ...]
    """Runs that are no curve: failed, lost or repeated."""

    @property
    def steps(self) -> int:
        """Environment steps of all runs together."""
        return len(self.seeds) * sum(curve.steps for curve in self.curves)

    @property
    def core_hours(self) -> float | None:
        """Hours of one core that all runs take together, None without a measured speed."""
        return self.steps / self.steps_per_second / 3600 if self.steps_per_second else None


@dataclass(frozen=True)
class Figure:
    """A figure as its data file describes it."""

    name: str
    title: str
    paper: str
    place: str
    measure: str
    episodes: int
    evaluation: Mapping[str, Any]
    published: tuple[Published, ...]
    settings: Mapping[str, Setting]

    @property
    def source(self) -> str:
        """Paper and place, as far as they are named."""
        return ", ".join(filter(None, (self.paper, self.place)))


def names() -> list[str]:
    """The figures that there are."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def load(name: str) -> Figure:
    """The figure of that name, or of a data file of one's own. Raises UsageError with the names that there are."""
    if name.endswith(".toml"):
        try:
            return parse(Path(name).stem, Path(name).read_text())
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"cannot read the data file {name}: {problem}") from problem
    if name not in names():
        raise UsageError(f"there is no figure {name!r}; there are: {', '.join(names())}")
    return parse(name, (_folder() / f"{name}.toml").read_text())


def parse(name: str, text: str) -> Figure:
    """A figure from the text of its data file. Raises UsageError naming the key that is missing, unknown or wrong."""
    try:
        data = tomllib.loads(text)
        _check_keys(data, KEYS, "")
        for key in TEXTS:
            _of_type(data, key, str, "a text")
        episodes = data.get("episodes", 1000)
        check_whole("episodes", episodes, 1)
        if "full" not in data:
            raise ValueError("key full.curves is missing; expected: a table with flags of rl-train for every curve")
        settings = {size: _setting(data[size], size) for size in SETTINGS if size in data}
        published = tuple(map(_published, _of_type(data, "published", list, "a list of tables")))
        for size in settings:
            if (published or data.get("paper")) and "stop" not in data[size]:
                raise ValueError(f"key {size}.stop is missing; expected in a figure of a paper: when a run ends")
        return Figure(
            name=name,
            title=data.get("title", name),
            paper=data.get("paper", ""),
            place=data.get("place", ""),
            measure=data.get("measure", "return"),
            episodes=episodes,
            evaluation=_of_type(data, "evaluation", dict, "a table"),
            published=published,
            settings=settings,
        )
    except ValueError as problem:
        raise UsageError(f"the data file of figure {name!r} is wrong: {problem}") from problem


def _setting(data: Any, size: str) -> Setting:
    prefix = f"{size}."
    _check_keys(data, SETTING_KEYS, prefix)
    if not data.get("curves"):
        raise ValueError(f"key {prefix}curves is missing; expected: a table with flags of rl-train for every curve")
    for key in ("arguments", "stop", "note"):
        _of_type(data, key, str, "a text", prefix)
    for key, kind in (("seeds", list), ("other_runs", list), ("tasks", dict), ("curves", dict)):
        _of_type(data, key, kind, "a table" if kind is dict else "a list", prefix)
    for key in ("tasks", "curves"):
        for name in data.get(key, {}):
            _of_type(data[key], name, str, "a text with flags of rl-train", f"{prefix}{key}.")
    seeds = tuple(data.get("seeds", [1]))
    for seed in seeds:
        check_whole(f"{prefix}seeds", seed, 0, 2**64 - 1)
    if "steps_per_second" in data:
        check_span(f"{prefix}steps_per_second", data["steps_per_second"], above(0))
    return Setting(
        curves=_curves(data),
        seeds=seeds,
        steps_per_second=data.get("steps_per_second"),
        note=data.get("note", ""),
        stop=data.get("stop", STOP),
        other_runs=tuple(data.get("other_runs", ())),
    )


def _curves(data: dict[str, Any]) -> tuple[Curve, ...]:
    """Curves of a setting; with tasks, every curve on every task, task by task."""
    shared, tasks = shlex.split(data.get("arguments", "")), data.get("tasks", {})
    curves = {name: shlex.split(words) for name, words in data["curves"].items()}
    if not tasks:
        return tuple(Curve(name, (*shared, *words)) for name, words in curves.items())
    return tuple(
        Curve(f"{core}.{task}", (*shared, *shlex.split(own), *words), core, task)
        for task, own in tasks.items()
        for core, words in curves.items()
    )


def _published(line: Any) -> Published:
    _check_keys(line, LINE_KEYS, "published.")
    for key in ("label", "value"):
        if key not in line:
            raise ValueError(f"key published.{key} is missing")
    check_span("published.value", line["value"], Span(None))
    return Published(line["label"], line["value"], line.get("note", ""))


def _check_keys(data: Any, allowed: tuple[str, ...], prefix: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{prefix.rstrip('.')} is {data!r}; expected: a table")
    for key in data:
        check_name("key", prefix + key, [prefix + each for each in allowed])


def _of_type(data: dict[str, Any], key: str, kind: type, expected: str, prefix: str = "") -> Any:
    """A value of a type, empty if it is not there. Raises ValueError."""
    value = data.get(key, kind())
    if not isinstance(value, kind):
        raise ValueError(f"{prefix}{key} is {value!r}; expected: {expected}")
    return value


def _folder() -> Any:
    return files(__name__.rpartition(".")[0]) / "data"
