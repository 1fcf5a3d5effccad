"""`rl-population`: the members of a population, their settings over time and the origin of their weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...base.errors import file_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ..metrics.panel import short
from ..metrics.rows import read_rows
from ..run.command_line import make_console, parse, run_command
from ..run.run_directory import RunDirectory
from .history import damage, read
from .lineage import Lineage, descent, families
from .lineage_plot import plot
from .replay import Replay

SHOWN_CHANGES = 5  # Number of last values of a setting to show
SHOWN_COPIES = 12
WIDEST = 8  # Characters of a value; longer names of settings are wrapped

_HELP = """Show a population: its members, their settings over time, and the origin of their weights."""


@dataclass(frozen=True, kw_only=True)
class PopulationViewConfig(Settings):
    """The population to show, and the format."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    replay: bool = False
    """Repeat every decision from the recorded scores; exit code 1 if the log differs."""
    plot: str = setting("", file="")
    """File for a plot of the lineage (PNG)."""


class Population:
    """The current state of a population, from its log."""

    def __init__(self, run: RunDirectory) -> None:
        self.path = run.path
        self.lineage = Lineage()
        self.start: dict[str, Any] = {}
        self.copies: list[dict[str, Any]] = []  # Executed decisions and replacements, with step and generation
        self.histories: list[dict[str, list[float]]] = []  # Values over time per member and setting
        self._last: dict[str, Any] = {}
        decisions: dict[int, dict[str, Any]] = {}
        for _, event in read(run):
            self.lineage.add(event)
            if event["event"] == "start":
                self.start = event
                self.histories = [{name: [x] for name, x in values.items()} for values in event["values"]]
            elif event["event"] == "evaluation":
                self._last = {name: event[name] for name in ("member_steps", "episodes")}
                decisions = {decision["member"]: decision for decision in event["decisions"]}
            elif event["event"] == "copy":
                self._add_copy(event, decisions[event["member"]], event["effective"])
            elif event["event"] == "replacement":
                self._add_copy(event, event, event["new"])

    @property
    def members(self) -> int:
        """Number of members."""
        return self.lineage.members

    def last(self, name: str, member: int) -> int:
        """`member_steps` or `episodes` of a member at the last evaluation."""
        return self._last[name][member] if self._last else 0

    def trained(self, member: int) -> dict[str, float]:
        """The last metrics of a member, each from the newest row that contains it; empty before the first row."""
        try:
            rows = read_rows(RunDirectory(self.path).member(member).metrics_file)
        except OSError:
            return {}
        return {name: value for row in rows for name, value in row.items()}

    def _add_copy(self, event: dict[str, Any], why: dict[str, Any], values: dict[str, float]) -> None:
        self.copies.append(why | event)
        for name, value in values.items():
            history = self.histories[event["member"]][name]
            if value != history[-1]:
                history.append(value)


def main(arguments: Sequence[str]) -> int:
    """Show the population according to the arguments; returns the exit code."""
    config = parse(PopulationViewConfig, arguments, "rl-population", _HELP)
    console = make_console()
    run = RunDirectory.open(config.run, lock=False)
    with damage(str(run.population_file)):  # events are dicts whose keys are read where they are shown
        if config.replay:
            return replay(run, console)
        population = Population(run)
        if config.plot:
            with file_errors(f"--plot: cannot write {config.plot}"):
                replace_file(Path(config.plot), plot(population.lineage))
            console.print(f"wrote {config.plot}")
        show(population, console)
    return 0


def replay(run: RunDirectory, console: Console) -> int:
    """Check a log; returns 0 if every repeated decision equals the recorded one, else 1."""
    replayed = Replay(read(run))
    for difference in replayed.differences:
        console.print(f"{run.population_file} {difference}", markup=False, soft_wrap=True)
    made = f"{replayed.decisions} decisions of {replayed.evaluations} evaluations and {replayed.copies} copies replayed"
    number = len(replayed.differences)
    console.print(f"{made}: " + (f"{number} disagreement{'s' * (number > 1)}" if number else "all equal to the log"))
    return 1 if number else 0


def show(population: Population, console: Console) -> None:
    """Print all tables."""
    start, lineage = population.start, population.lineage
    console.print(
        f"{population.path}: {population.members} members, {start['scheme']}, seed {start['seed']}; "
        f"{_counted(lineage.generation, 'evaluation')}, {_counted(len(population.copies), 'cop', 'y', 'ies')} in "
        f"{short(lineage.step)} steps",
        markup=False,
        soft_wrap=True,
    )
    console.print(members_table(population))
    if any(len(history) > 1 for settings in population.histories for history in settings.values()):
        console.print(schedules_table(population))
    if population.copies:
        console.print(copies_table(population))
        text = "; ".join(f"{founder}: {', '.join(map(str, now))}" for founder, now in families(lineage).items())
        console.print(f"families (first member: members that descend from it now)  {text}", soft_wrap=True)


def _counted(number: int, what: str, one: str = "", more: str = "s") -> str:
    return f"{number} {what}{one if number == 1 else more}"


def members_table(population: Population) -> Table:
    """One row per member, as of the last evaluation; before the first one, from its last metrics."""
    judged = population.lineage.generation > 0
    title = "members at the last evaluation" if judged else "members, with their last metrics; not compared yet"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    names = list(population.histories[0])
    table.add_column("member", justify="right", no_wrap=True)
    for name in ("return", "steps", "episodes", *map(short_name, names)):
        table.add_column(name, justify="right", overflow="fold", min_width=min(len(name), WIDEST))
    table.add_column("weights from", overflow="fold")
    best = population.lineage.best() if judged else None
    for member in range(population.members):
        row = {} if judged else population.trained(member)
        score = population.lineage.score(member) if judged else row.get("episode/return", math.nan)
        steps = population.last("member_steps", member) if judged else row.get("step")
        table.add_row(
            f"{member}",
            "-" if math.isnan(score) else f"{score:.3f}",
            "-" if steps is None else short(steps),
            short(population.last("episodes", member)) if judged else "-",
            *(f"{population.histories[member][name][-1]:.3g}" for name in names),
            descent(population.lineage, member),
            style="bold green" if member == best else None,
        )
    return table


def schedules_table(population: Population) -> Table:
    """The values over time of settings that have changed."""
    table = Table(title="settings over time, newest last", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("setting", "member", "values"):
        table.add_column(name, overflow="fold")
    for name in population.histories[0]:
        table.add_section()
        for member, settings in enumerate(population.histories):
            if len(settings[name]) == 1:
                continue
            shown = [f"{x:.3g}" for x in settings[name][-SHOWN_CHANGES:]]
            if len(settings[name]) > SHOWN_CHANGES:
                shown.insert(0, "...")
            table.add_row(short_name(name), f"{member}", " -> ".join(shown))
    return table


def copies_table(population: Population) -> Table:
    """The last copies and their reasons."""
    more = f"; {len(population.copies) - SHOWN_COPIES} before" if len(population.copies) > SHOWN_COPIES else ""
    table = Table(title=f"copies, newest last{more}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("at", "copy", "mean returns", "reason"):
        table.add_column(name, overflow="fold")
    for copy in population.copies[-SHOWN_COPIES:]:
        means = [copy.get(name) for name in ("mean", "opponent_mean")]
        own, other = ("?" if x is None else f"{x:.3f}" for x in means)
        arrow = f"{copy['member']} <- {copy['from']}"
        table.add_row(short(copy["step"]), arrow, f"{own} < {other}", Text(copy["reason"]))
    return table


def short_name(setting: str) -> str:
    """A setting without the name of its part: lr for learner.lr."""
    return setting.rpartition(".")[2]


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-population`."""
    run_command("rl-population", main, arguments)
