"""A figure as a data file (format: docs/tutorials/figure.md), and its runs.

A run is an `rl-train` process for one curve and seed, finished when its evaluation is written. After a stop, the next
command resumes every run from its newest checkpoint.
"""

import json
import shlex
import subprocess
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...base.errors import EngramError, above, library_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ...learners import checkpoints
from ..cluster.scheduler import Job, RunFailedError, lower_priority, tool
from ..config.plain import from_dict, typed
from ..config.run_config import RunConfig
from ..config.run_flags import parse_run
from ..metrics.rows import Row, read_log
from ..runs import saved
from ..runs.directory import CONFIG, RunDirectory
from ..runs.trained import fixed_differences, imitated, run_config

SETTINGS = ("full", "quick")
DATA: Any = files(__name__.rpartition(".")[0]) / "data"


@dataclass(frozen=True, kw_only=True)
class Published:
    label: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One curve of a figure, trained once for each seed; in a figure with tasks, it is named CORE.TASK."""

    name: str
    arguments: tuple[str, ...]  # Arguments of `rl-train`, without seed and run directory
    core: str = ""
    task: str = ""

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the arguments. Raises EngramError, including for an agent that imitates a player."""
        config = parse_run(self.arguments)
        imitates = config.learner.imitate or (config.start_from and imitated(config.start_from))
        refuse(imitates, f"curve {self.name} imitates a player; allowed in a figure: agents that learn from rewards")
        return config

    @property
    def steps(self) -> int:
        return self.config.total_steps * self.config.num_members


@dataclass(frozen=True, kw_only=True)
class Setting(Settings):
    curves: tuple[Curve, ...] = ()
    seeds: tuple[int, ...] = (1,)
    steps_per_second: float | None = setting(None, above(0))  # Of one CPU core
    note: str = ""
    stop: str = "A run ends at its `--total-steps`."  # Stopping rule of the runs
    other_runs: tuple[str, ...] = ()  # Runs outside the curves: failed, lost or repeated

    @property
    def steps(self) -> int:
        return len(self.seeds) * sum(curve.steps for curve in self.curves)

    @property
    def core_hours(self) -> float | None:
        """Hours of one CPU core for all runs."""
        return self.steps / self.steps_per_second / 3600 if self.steps_per_second else None


@dataclass(frozen=True, kw_only=True)
class Figure(Settings):
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
    return sorted(file.name.removesuffix(".toml") for file in DATA.iterdir() if file.name.endswith(".toml"))


def load(name: str) -> Figure:
    """Load a figure by name or from a custom data file. Raises EngramError with the available names."""
    if name.endswith(".toml"):
        with library_errors(f"cannot read the data file {name}", OSError, UnicodeDecodeError):
            return parse(Path(name).stem, Path(name).read_text())
    refuse(name not in names(), f"there is no figure {name!r}; available: {', '.join(names())}")
    return parse(name, (DATA / f"{name}.toml").read_text())


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
    cores, tasks = (typed(dict[str, str], data.pop(key, {}), f"{size}.{key}") for key in ("curves", "tasks"))
    shared, curves = shlex.split(data.pop("arguments", "")), list[Curve]()
    for task, task_flags in (tasks or {"": ""}).items():
        for core, flags in cores.items():
            arguments = (*shared, *shlex.split(task_flags), *shlex.split(flags))
            curves.append(Curve(f"{core}.{task}", arguments, core, task) if tasks else Curve(core, arguments))
    rest: Setting = from_dict(Setting, data, f"{size}.")
    return replace(rest, curves=tuple(curves))


@dataclass(frozen=True, eq=False)
class FigureRun(Job):
    """One curve with one seed; its evaluation is next to its run directory."""

    figure: Figure
    curve: Curve
    seed: int

    @property
    def evaluation_file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.evaluation.json")

    @property
    def total_steps(self) -> int:
        return self.curve.steps

    @property
    def finished(self) -> bool:
        return self.evaluation_file.exists() and self.evaluation()["step"] >= self.curve.steps

    @property
    def begun(self) -> bool:
        return (self.folder / CONFIG).exists()

    def checkpoint(self) -> Path | None:
        return checkpoints.latest(self.folder / "checkpoints")

    def rows(self) -> list[Row]:
        return read_log(self.folder / "metrics.jsonl")

    def evaluation(self) -> dict[str, Any]:
        return json.loads(self.evaluation_file.read_text())

    def checkpoint_step(self) -> int:
        newest = self.checkpoint()
        return checkpoints.step_of(newest) if newest else 0

    def check(self) -> None:
        """Raise EngramError if the run was started with settings that differ from the curve's."""
        if not self.begun:
            return
        begun, expected = self._config(), replace(self.curve.config, seed=self.seed)
        if expected.learner.precision == "auto":  # the run recorded its choice
            expected = replace(expected, learner=replace(expected.learner, precision=begun.learner.precision))
        for name, then, now in fixed_differences(begun, expected):
            text = f"{self.folder} was trained with {name} = {then!r}, but curve {self.curve.name} now has {now!r}"
            raise EngramError(f"{text}; move the directory away, or choose another one with --runs")

    def _config(self) -> RunConfig:
        return run_config(RunDirectory.open(self.folder, lock=False))

    def command(self) -> list[str]:
        if not self.begun:
            return [tool("rl-train"), *self.curve.arguments, "--seed", str(self.seed), "--run-dir", str(self.folder)]
        arguments, steps = [tool("rl-train"), "--resume", str(self.folder)], self.curve.config.total_steps
        return [*arguments, "--total-steps", str(steps)] if steps > self._config().total_steps else arguments

    def complete(self) -> None:
        """Evaluate the newest weights on new levels, or with `--eval-every` those that were best in the run."""
        raw = self.folder.with_name(f".{self.folder.name}.json")
        newest, step = self.checkpoint(), self.checkpoint_step()
        arguments = [tool("rl-eval"), str(self.folder), "--episodes", str(self.figure.episodes), "--json", str(raw)]
        has_best = newest and self._config().eval_every > 0 and saved.read(newest)["best"] is not None
        arguments += ["--checkpoint", "best" if has_best else str(step)]
        if self.figure.evaluation:
            arguments += ["--env-args", *(f"{key}={value}" for key, value in self.figure.evaluation.items())]
        with self.log.open("a") as log:
            code = subprocess.run(arguments, stdout=log, stderr=log, check=False, preexec_fn=lower_priority).returncode
        if code:
            raise RunFailedError(f"{self.label}: rl-eval ended with exit code {code}; see {self.log}")
        evaluation = json.loads(raw.read_text())
        if self.figure.measure not in evaluation["all"]:
            names = ", ".join(name for name in evaluation["all"] if name != "episodes")
            raise RunFailedError(f"{self.label}: measure is {self.figure.measure!r}; rl-eval reports: {names}")
        evaluation |= {"step": step, "weights_step": checkpoints.step_of(Path(evaluation["checkpoint"]))}
        replace_file(self.evaluation_file, json.dumps(evaluation, indent=1).encode())
        raw.unlink()

    def outcome(self, event: str) -> str:
        line = super().outcome(event)
        if event in ("finished", "evaluated"):
            estimate = self.evaluation()["all"][self.figure.measure]
            line += f", {self.figure.measure} {estimate['mean']:.3g} [{estimate['low']:.3g}, {estimate['high']:.3g}]"
        return line
