"""A figure of a paper as a data file: its curves as words of `rl-train`, seeds, measure and the paper's numbers.

    title = "Graph POMDP"                        shown in lists and above the picture
    paper = "Schlag et al. 2021 (FWM)"
    place = "section 4.2, figure 5, right"       where the paper shows it
    measure = "return"                           a metric `episode/<measure>` and a field of rl-eval
    episodes = 1000                              of the evaluation on fresh levels
    evaluation = { split = "test" }              parameters of the world for the evaluation alone; may be left out

    [[published]]                                one line of the picture each
    label = "FWM"
    value = 107
    note = "after 450 to 900 M steps"

    [full]                                       the figure; [quick], if there is one, has the same form
    arguments = "--env pomdp-graph ..."          words of rl-train that all curves share
    seeds = [1, 2, 3]
    steps_per_second = 6000                      of one core, measured: what the prediction of the time is made from
    stop = "..."                                 when a run ends, fixed before its evaluation levels are looked at
    note = "..."                                 printed in the list and on the page; may be left out
    other_runs = ["..."]                         runs that failed, were lost or repeated; may be left out
    [full.curves]
    fwm = "--core fwm"                           the rest of each curve's words; with `--eval-every` in them the weights
                                                 that were best in those evaluations are played at the end

Adding a figure is adding a file to `data/`; `rl-reproduce FILE.toml` reads one from anywhere.
"""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..run.command_line import UsageError
from ..run.config import RunConfig
from ..run.run_flags import parse_run

SETTINGS = ("full", "quick")


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

    @cached_property
    def config(self) -> RunConfig:
        """The configuration that the words stand for. Raises UsageError."""
        return parse_run(self.arguments)

    @property
    def steps(self) -> int:
        """Environment steps of one run, of all its members together."""
        return self.config.total_steps * self.config.num_members


@dataclass(frozen=True)
class Setting:
    """A figure at one size."""

    curves: tuple[Curve, ...]
    seeds: tuple[int, ...]
    steps_per_second: float
    """Of one core."""
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
    def core_hours(self) -> float:
        """Hours of one core that all runs take together."""
        return self.steps / self.steps_per_second / 3600


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
    """A figure from the text of its data file. Raises UsageError naming the entry that is missing or unknown."""
    try:
        data = tomllib.loads(text)
        settings = {size: _setting(data.pop(size)) for size in SETTINGS if size == "full" or size in data}
        published = tuple(Published(line["label"], line["value"], line["note"]) for line in data.pop("published"))
        evaluation = data.pop("evaluation", {})
        return Figure(name=name, published=published, settings=settings, evaluation=evaluation, **data)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as problem:
        raise UsageError(f"the data file of figure {name!r} is wrong: {problem}") from problem


def _setting(data: Mapping[str, Any]) -> Setting:
    shared = shlex.split(data["arguments"])
    curves = tuple(Curve(name, (*shared, *shlex.split(words))) for name, words in data["curves"].items())
    other = tuple(data.get("other_runs", ()))
    return Setting(curves, tuple(data["seeds"]), data["steps_per_second"], data.get("note", ""), data["stop"], other)


def _folder() -> Any:
    return files(__name__.rpartition(".")[0]) / "data"
