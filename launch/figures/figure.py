"""A figure as a data file: curves as flags of `rl-train`, seeds, a measure and the paper's results.

docs/tutorials/figure.md describes the format. To add a figure, add a file to `data/`; `rl-reproduce FILE.toml`
reads one from any path.
"""

import shlex
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...base.errors import library_errors, refuse, user_errors
from ...base.messages import above
from ...base.settings import Settings, setting
from ..config.run_config import RunConfig
from ..config.run_flags import parse_run
from ..config.settings.plain import from_dict, typed
from ..runs.trained import imitated

SETTINGS = ("full", "quick")


@dataclass(frozen=True, kw_only=True)
class Published:
    label: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One curve of a figure: the settings of a core, trained once for each seed."""

    name: str
    arguments: tuple[str, ...]  # Arguments of `rl-train`, without seed and run directory
    core: str = ""  # In a figure with tasks, whose curves are named CORE.TASK: the key of the curve
    task: str = ""  # In a figure with tasks: the task

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the arguments. Raises EngramError, including for an agent that imitates a player."""
        config = parse_run(self.arguments)
        refuse(
            config.learner.imitate or (config.start_from and imitated(config.start_from)),
            f"curve {self.name} imitates a player; allowed in a figure: agents that learn from rewards",
        )
        return config

    @property
    def command(self) -> str:
        return " ".join(("rl-train", *self.arguments))

    @property
    def steps(self) -> int:
        return self.config.total_steps * self.config.num_members


@dataclass(frozen=True, kw_only=True)
class Setting(Settings):
    """A figure at one size."""

    curves: tuple[Curve, ...] = ()
    seeds: tuple[int, ...] = (1,)
    steps_per_second: float | None = setting(None, above(0))
    """Steps/s of one CPU core; None if unmeasured."""
    note: str = ""
    stop: str = "A run ends at its `--total-steps`."
    """Stopping rule of the runs."""
    other_runs: tuple[str, ...] = ()
    """Runs outside the curves: failed, lost or repeated."""

    @property
    def steps(self) -> int:
        return len(self.seeds) * sum(curve.steps for curve in self.curves)

    @property
    def core_hours(self) -> float | None:
        """Hours of one CPU core for all runs; None without a measured speed."""
        return self.steps / self.steps_per_second / 3600 if self.steps_per_second else None


@dataclass(frozen=True, kw_only=True)
class Figure(Settings):
    """A figure from its data file."""

    name: str
    title: str
    paper: str = ""
    place: str = ""
    measure: str = "return"
    episodes: int = setting(1000, (1, None))
    evaluation: dict[str, Any] = field(default_factory=dict[str, Any])
    published: tuple[Published, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict[str, Setting])

    @property
    def source(self) -> str:
        return ", ".join(filter(None, (self.paper, self.place)))


def names() -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def load(name: str) -> Figure:
    """Load a figure by name or from a custom data file. Raises EngramError with the available names."""
    if name.endswith(".toml"):
        with library_errors(f"cannot read the data file {name}", OSError, UnicodeDecodeError):
            return parse(Path(name).stem, Path(name).read_text())
    refuse(name not in names(), f"there is no figure {name!r}; available: {', '.join(names())}")
    return parse(name, (_folder() / f"{name}.toml").read_text())


def parse(name: str, text: str) -> Figure:
    """Parse a data file's text. Raises EngramError naming the missing, unknown or wrong key."""
    with user_errors(f"the data file of figure {name!r} is wrong"):
        data = tomllib.loads(text)
        sizes = {size: data.pop(size, None) for size in SETTINGS if size in data or size == "full"}
        figure: Figure = from_dict(Figure, {"name": name, "title": name} | data)
        return replace(figure, settings={size: _setting(table, size, figure) for size, table in sizes.items()})


def _setting(data: Any, size: str, figure: Figure) -> Setting:
    missing = not isinstance(data, dict) or not data.get("curves")
    refuse(missing, f"key {size}.curves is missing; expected: a table with flags of rl-train for every curve")
    unstopped = (figure.published or figure.paper) and "stop" not in data
    refuse(unstopped, f"key {size}.stop is missing; expected in a figure of a paper: when a run ends")
    curves, tasks = (typed(dict[str, str], data.pop(key, {}), f"{size}.{key}") for key in ("curves", "tasks"))
    shared = shlex.split(data.pop("arguments", ""))
    rest: Setting = from_dict(Setting, data, f"{size}.")
    return replace(rest, curves=_curves(shared, *({x: shlex.split(y) for x, y in d.items()} for d in (curves, tasks))))


def _curves(shared: list[str], curves: dict[str, list[str]], tasks: dict[str, list[str]]) -> tuple[Curve, ...]:
    """Return the curves of a setting; with tasks, every curve on every task, task by task."""
    if not tasks:
        return tuple(Curve(name, (*shared, *flags)) for name, flags in curves.items())
    return tuple(
        Curve(f"{core}.{task}", (*shared, *task_flags, *flags), core, task)
        for task, task_flags in tasks.items()
        for core, flags in curves.items()
    )


def _folder() -> Any:
    return files(__name__.rpartition(".")[0]) / "data"
