"""`rl-population`: members of a population, their settings, copies, and the origin of weights."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...base.errors import file_errors, library_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ..config.command_line import make_console, parse
from ..metrics.panel import short
from ..metrics.rows import read_log
from ..runs.directory import RunDirectory
from .lineage import Lineage, descent, plot
from .replay import Event, Replay

SHOWN_COPIES = 12
WIDEST = 8  # Column width in characters; longer names of settings are wrapped

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
    with library_errors(f"{run.population_file} is damaged", LookupError, TypeError, AttributeError):
        events = read(run)
        if config.replay:
            return replay(run, events, console)
        lineage = Lineage(events)
        if config.plot:
            with file_errors(f"--plot: cannot write {config.plot}"):
                replace_file(Path(config.plot), plot(lineage))
            console.print(f"wrote {config.plot}")
        show(run, events, lineage, console)
    return 0


def read(run: RunDirectory) -> list[Event]:
    """Read the events of a population's log, without an incomplete last line, as after a power failure.

    Raises EngramError if the run has no population, or naming a line that is not an event.
    """
    file, events = run.population_file, list[Event]()
    refuse(not file.is_file(), f"{run.path} is a run without a population: it has no {file.name}")
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            with user_errors(f"{file} line {number} is damaged"):
                events.append(json.loads(line))
    refuse(not events or events[0]["event"] != "start", f"{file} is damaged: its first event is not start")
    return events


def replay(run: RunDirectory, events: Sequence[Event], console: Console) -> int:
    """Check a log; return 0 if every repeated decision equals the recorded one, else 1."""
    replayed = Replay(events)
    for difference in replayed.differences:
        console.print(f"{run.population_file} {difference}", markup=False, soft_wrap=True)
    made = f"{replayed.decisions} decisions of {replayed.evaluations} evaluations and {replayed.copies} copies replayed"
    count = len(replayed.differences)
    console.print(f"{made}: " + (f"{count} disagreement{'s' * (count > 1)}" if count else "all equal to the log"))
    return 1 if count else 0


def show(run: RunDirectory, events: Sequence[Event], lineage: Lineage, console: Console) -> None:
    start = events[0]
    values: list[dict[str, float]] = list(start["values"])  # Current settings of every member
    copies: list[Event] = []  # Executed decisions and replacements
    last: Event = {}  # The last evaluation
    for event in events:
        if event["event"] == "evaluation":
            last = event
        elif event["event"] in ("copy", "replacement"):
            member = event["member"]
            decisions = last.get("decisions", ()) if event["event"] == "copy" else ()
            copies.append(next((x for x in decisions if x["member"] == member), {}) | event)
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
    """Make a table of the members as of the last evaluation; before the first, with their last metrics."""
    title = "members at the last evaluation" if last else "members, with their last metrics; not compared yet"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("member", "return", "steps", "episodes", *(name.rpartition(".")[2] for name in values[0])):
        table.add_column(name, justify="right", overflow="fold", min_width=min(len(name), WIDEST))
    table.add_column("weights from", overflow="fold")
    best = lineage.best() if last else None
    for member, settings in enumerate(values):
        if last:
            score, steps, episodes = lineage.score(member), last["member_steps"][member], last["episodes"][member]
        else:  # each metric from the newest row that contains it
            row = {name: x for row in read_log(run.member(member).metrics_file) for name, x in row.items()}
            score, steps, episodes = row.get("episode/return", math.nan), row.get("step", 0), 0
        counts = "-" if math.isnan(score) else f"{score:.3f}", short(steps), short(episodes)
        style = "bold green" if member == best else None
        shown = (f"{settings[name]:.3g}" for name in values[0])
        table.add_row(f"{member}", *counts, *shown, descent(lineage, member), style=style)
    return table


def copies_table(copies: Sequence[Event]) -> Table:
    more = f"; {len(copies) - SHOWN_COPIES} before" if len(copies) > SHOWN_COPIES else ""
    table = Table(title=f"copies, newest last{more}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("at", "copy", "mean returns", "reason"):
        table.add_column(name, overflow="fold")
    for copy in copies[-SHOWN_COPIES:]:
        mean, other = ("?" if (x := copy.get(name)) is None else f"{x:.3f}" for name in ("mean", "opponent_mean"))
        arrow = f"{copy['member']} <- {copy['from']}"
        table.add_row(short(copy["step"]), arrow, f"{mean} < {other}", Text(copy["reason"]))
    return table
