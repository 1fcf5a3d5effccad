"""`rl-population`: members of a population, their settings, copies, the origin of weights, and a check of the log."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...base.errors import file_errors, library_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ...learners.population.config import PopulationConfig, Values
from ...learners.population.decisions import Decision, decide, initial_values
from ..config.command_line import make_console, parse
from ..config.settings.plain import from_dict
from ..metrics.panel import short
from ..metrics.rows import read_log
from ..runs.directory import RunDirectory
from .lineage import Lineage, descent, plot

SHOWN_COPIES = 12
WIDEST = 8  # Column width in characters; longer names of settings are wrapped
PRECISION = 1e-9  # Relative tolerance: a p-value's last digits depend on scipy's version
Event = dict[str, Any]

_HELP = "Show a population: members with their settings, copies, and the origin of weights."


@dataclass(frozen=True, kw_only=True)
class PopulationViewConfig(Settings):
    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    replay: bool = False
    """Repeat every decision from the recorded scores; exit code 1 if the log differs."""
    plot: str = setting("", file="")
    """File for a plot of the lineage (PNG)."""


def main(arguments: Sequence[str]) -> int:
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
    """Read the events of a population's log, without an incomplete last line. Raises EngramError."""
    file, events = run.population_file, list[Event]()
    refuse(not file.is_file(), f"{run.path} is a run without a population: it has no {file.name}")
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            with user_errors(f"{file} line {number} is damaged"):
                events.append(json.loads(line))
    refuse(not events or events[0]["event"] != "start", f"{file} is damaged: its first event is not start")
    return events


def replay(run: RunDirectory, events: Sequence[Event], console: Console) -> int:
    """Check a log; return the exit code: 0 if every repeated decision equals the recorded one, else 1."""
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
    copies: list[Event] = []  # Executed decisions
    last: Event = {}  # The last evaluation
    for event in events:
        if event["event"] == "evaluation":
            last = event
        elif event["event"] == "copy":
            decisions = last.get("decisions", ())
            copies.append(next((x for x in decisions if x["member"] == event["member"]), {}) | event)
            values[event["member"]] = event["effective"]
    kind = f"{lineage.members} members, {start['scheme']}, seed {start['seed']}"
    counts = f"evaluations: {lineage.generation}, copies: {len(copies)}, steps: {short(lineage.step)}"
    console.print(f"{run.path}: {kind}; {counts}", markup=False, soft_wrap=True)
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


class Replay:
    """Replay of a log's events, one per line; `differences` lists where the two disagree."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.differences: list[str] = []
        self.evaluations = self.decisions = self.copies = 0
        self._config, self._seed = PopulationConfig(), 0
        self._values: list[Values] = []  # Every member's explored settings according to the events so far
        self._due: dict[int, tuple[int, Decision]] = {}  # Copies to execute: member -> line of the evaluation, decision
        steps = {"start": self._start, "evaluation": self._evaluation, "copy": self._copy, "resume": lambda _: None}
        for self._line, event in enumerate(events, 1):
            if event["event"] != "copy":
                for member, (line, decision) in self._due.items():
                    text = f"the copy from {decision.opponent} that was decided does not follow"
                    self._differ(member, f"{text}; a {event['event']} event does", line)
                self._due.clear()
            steps[event["event"]](event)

    def _start(self, event: Event) -> None:
        self._config, self._seed = from_dict(PopulationConfig, event["pbt"], "pbt."), event["seed"]
        self._values = initial_values(self._config, self._seed, event["members"])
        self._take_values(event, "value at the start")

    def _evaluation(self, event: Event) -> None:
        self.evaluations += 1
        if event["generation"] != self.evaluations:
            self._differ(None, f"generation is {event['generation']} in the log, {self.evaluations} by counting")
        self._take_values(event, "value before the evaluation")
        inputs = event["generation"], event["evaluated"], event["scores"], event["values"]
        logged = {decision["member"]: decision for decision in event["decisions"]}
        for made in decide(self._config, self._seed, *inputs):
            self.decisions += 1
            if made.copy:
                self._due[made.member] = (self._line, made)
            if made.member in logged:
                self._compare(made.member, logged.pop(made.member), made._asdict())
            else:
                self._differ(made.member, "no decision in the log, one by replay")
        for member in logged:
            self._differ(member, "a decision in the log, none by replay")

    def _copy(self, event: Event) -> None:
        self.copies += 1
        member = event["member"]
        if member in self._due:
            _, decision = self._due.pop(member)
            self._compare(member, event, {"from": decision.opponent, "effective": decision.new})
        else:
            self._differ(member, "a copy in the log that no evaluation decided")
        self._values[member] = dict(event["effective"])

    def _take_values(self, event: Event, label: str) -> None:
        """Compare an event's settings of all members with the replayed ones, and continue with the event's."""
        for member, (logged, expected) in enumerate(zip(event["values"], self._values, strict=True)):
            names = sorted(logged.keys() | expected.keys())
            self._compare(member, logged, {name: expected.get(name) for name in names}, f"{label}: ")
        self._values = [dict(values) for values in event["values"]]

    def _compare(self, member: int, logged: Mapping[str, Any], made: Mapping[str, Any], prefix: str = "") -> None:
        for name, value in made.items():
            if not same(logged.get(name), value):
                self._differ(member, f"{prefix}{name} is {logged.get(name)!r} in the log, {value!r} by replay")

    def _differ(self, member: int | None, difference: str, line: int | None = None) -> None:
        of = "" if member is None else f", member {member}"
        self.differences.append(f"line {line or self._line}{of}: {difference}")


def same(logged: Any, made: Any) -> bool:
    """Whether two plain values are equal; floats up to PRECISION."""
    if isinstance(made, dict) and isinstance(logged, dict):
        return made.keys() == logged.keys() and all(same(logged[name], made[name]) for name in made)
    if isinstance(made, float) and isinstance(logged, int | float):
        return math.isclose(logged, made, rel_tol=PRECISION)
    return logged == made
