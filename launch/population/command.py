"""`rl-population`: members of a population, their settings, copies, and the origin of weights."""

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
from ..config.command_line import make_console, parse
from ..metrics.panel import short
from ..metrics.rows import read_log
from ..runs.directory import RunDirectory
from .history import damage, read
from .lineage import Lineage, descent, plot
from .replay import Replay

SHOWN_COPIES = 12
WIDEST = 8  # Column width in characters; longer names of settings are wrapped

Event = dict[str, Any]

_HELP = """Show a population: members with their settings, copies, and the origin of weights."""


@dataclass(frozen=True, kw_only=True)
class PopulationViewConfig(Settings):
    """The population to show, and how to show it."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    replay: bool = False
    """Repeat every decision from the recorded scores; exit code 1 if the log differs."""
    plot: str = setting("", file="")
    """File for a plot of the lineage (PNG)."""


def main(arguments: Sequence[str]) -> int:
    """Show the population according to the arguments; return the exit code."""
    config = parse(PopulationViewConfig, arguments, "rl-population", _HELP)
    console = make_console()
    run = RunDirectory.open(config.run, lock=False)
    with damage(str(run.population_file)):  # events are dicts whose keys are read when they are shown
        if config.replay:
            return replay(run, console)
        events = [entry.event for entry in read(run)]
        lineage = Lineage(events)
        if config.plot:
            with file_errors(f"--plot: cannot write {config.plot}"):
                replace_file(Path(config.plot), plot(lineage))
            console.print(f"wrote {config.plot}")
        show(run, events, lineage, console)
    return 0


def replay(run: RunDirectory, console: Console) -> int:
    """Check a log; return 0 if every repeated decision equals the recorded one, else 1."""
    replayed = Replay(read(run))
    for difference in replayed.differences:
        console.print(f"{run.population_file} {difference}", markup=False, soft_wrap=True)
    made = f"{replayed.decisions} decisions of {replayed.evaluations} evaluations and {replayed.copies} copies replayed"
    count = len(replayed.differences)
    console.print(f"{made}: " + (f"{count} disagreement{'s' * (count > 1)}" if count else "all equal to the log"))
    return 1 if count else 0


def show(run: RunDirectory, events: Sequence[Event], lineage: Lineage, console: Console) -> None:
    """Print the members and the copies."""
    start = events[0]
    values: list[dict[str, float]] = list(start["values"])  # Current settings of every member
    copies: list[Event] = []  # Executed decisions and replacements
    last: Event = {}  # The last evaluation
    for event in events:
        if event["event"] == "evaluation":
            last = event
        elif event["event"] in ("copy", "replacement"):
            member = event["member"]
            reason = next((x for x in last.get("decisions", ()) if x["member"] == member), {})
            copies.append(reason | event if event["event"] == "copy" else event)
            values[member] = event.get("effective") or event["new"]
    console.print(
        f"{run.path}: {lineage.members} members, {start['scheme']}, seed {start['seed']}; "
        f"evaluations: {lineage.generation}, copies: {len(copies)}, steps: {short(lineage.step)}",
        markup=False,
        soft_wrap=True,
    )
    console.print(members_table(run, lineage, values, last))
    if copies:
        console.print(copies_table(copies))


def members_table(run: RunDirectory, lineage: Lineage, values: list[dict[str, float]], last: Event) -> Table:
    """Make a table with one row per member, as of the last evaluation; before the first, from the last metrics."""
    title = "members at the last evaluation" if last else "members, with their last metrics; not compared yet"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    names = list(values[0])
    for name in ("member", "return", "steps", "episodes", *(name.rpartition(".")[2] for name in names)):
        table.add_column(name, justify="right", overflow="fold", min_width=min(len(name), WIDEST))
    table.add_column("weights from", overflow="fold")
    best = lineage.best() if last else None
    for member, settings in enumerate(values):
        row = {} if last else last_metrics(run.member(member))
        score = lineage.score(member) if last else row.get("episode/return", math.nan)
        steps = last["member_steps"][member] if last else row.get("step")
        table.add_row(
            f"{member}",
            "-" if math.isnan(score) else f"{score:.3f}",
            "-" if steps is None else short(steps),
            short(last["episodes"][member]) if last else "-",
            *(f"{settings[name]:.3g}" for name in names),
            descent(lineage, member),
            style="bold green" if member == best else None,
        )
    return table


def last_metrics(run: RunDirectory) -> dict[str, float]:
    """Read the last metrics of a member, each from the newest row that contains it; empty before the first row."""
    return {name: value for row in read_log(run.metrics_file) for name, value in row.items()}


def copies_table(copies: Sequence[Event]) -> Table:
    """Make a table of the last copies and their reasons."""
    more = f"; {len(copies) - SHOWN_COPIES} before" if len(copies) > SHOWN_COPIES else ""
    table = Table(title=f"copies, newest last{more}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("at", "copy", "mean returns", "reason"):
        table.add_column(name, overflow="fold")
    for copy in copies[-SHOWN_COPIES:]:
        mean, other = ("?" if (x := copy.get(name)) is None else f"{x:.3f}" for name in ("mean", "opponent_mean"))
        arrow = f"{copy['member']} <- {copy['from']}"
        table.add_row(short(copy["step"]), arrow, f"{mean} < {other}", Text(copy["reason"]))
    return table
