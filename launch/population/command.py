"""`rl-population`: members of a population, their settings, copies, the origin of weights, and a check of the log."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
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
from ..config.plain import from_dict
from ..metrics.panel import short
from ..metrics.rows import read_log
from ..runs.directory import RunDirectory

SHOWN_COPIES = 12
SHOWN_ANCESTORS = 6  # Number of a member's ancestors to name, in addition to the first one
UNKNOWN = "#b8b8b8"  # Color of weights that were never evaluated
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


class Stretch(NamedTuple):
    """A segment of a member's history, from one evaluation or copy to the next."""

    member: int
    begin: int  # In steps of the whole population
    end: int
    score: float  # Mean return at the evaluation that ended it; before that, of the source stretch, or nan
    parent: int | None  # Index of the source stretch of the weights; None at the start


class Lineage:
    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.members = self.generation = self.step = 0
        self.closed: list[Stretch] = []
        self.transfers: list[tuple[int, int, int]] = []  # Step, source and target of every copy
        self._open: list[Stretch] = []
        self._sources: dict[int, int] = {}  # Copies decided by the last evaluation: member -> source stretch
        for event in events:
            self._add(event)

    def _add(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        self.step = max(self.step, event["step"])
        if kind == "start":
            self.members = event["members"]
            self._open = [Stretch(i, 0, 0, math.nan, None) for i in range(self.members)]
        elif kind == "evaluation":
            self.generation = event["generation"]
            for member in event["evaluated"]:
                scores = event["scores"][member]
                self._end(member, math.fsum(scores) / len(scores) if scores else math.nan)
            # The copies of an evaluation are simultaneous: each uses its source's weights from before all copies.
            self._sources = {x["member"]: self._end(x["opponent"]) for x in event["decisions"] if x["copy"]}
        elif kind == "copy":
            source, target = event["from"], event["member"]
            # A damaged log may have lost the evaluation's line: then the source's last weights are the parent.
            parent = self._sources.pop(target) if target in self._sources else self._end(source)
            self._end(target)
            self.transfers.append((self.step, source, target))
            self._open[target] = Stretch(target, self.step, self.step, self.closed[parent].score, parent)

    def stretches(self) -> list[Stretch]:
        return self.closed + [stretch._replace(end=self.step) for stretch in self._open]

    def ancestry(self, member: int) -> list[Stretch]:
        """Return the stretches from which a member's weights descend, newest first, with the current one."""
        stretches = [self._open[member]._replace(end=self.step)]
        while (parent := stretches[-1].parent) is not None:
            stretches.append(self.closed[parent])
        return stretches

    def score(self, member: int) -> float:
        return self._open[member].score

    def best(self) -> int:
        """Find the member whose weights have the highest score; prefer the source to a copy with the same score."""
        scores = [-math.inf if math.isnan(stretch.score) else stretch.score for stretch in self._open]
        return max(range(self.members), key=lambda member: (scores[member], -self._open[member].begin, -member))

    def _end(self, member: int, score: float | None = None) -> int:
        """End a member's stretch and begin one with the same weights; return the index of the ended one."""
        stretch = self._open[member]
        if score is None and stretch.begin == self.step and stretch.parent is not None:
            return stretch.parent
        self.closed.append(stretch._replace(end=self.step, score=stretch.score if score is None else score))
        self._open[member] = Stretch(member, self.step, self.step, self.closed[-1].score, len(self.closed) - 1)
        return len(self.closed) - 1


def descent(lineage: Lineage, member: int) -> str:
    """Describe the descent of a member's weights: "<- 4 (at 887k) <- 7 (at 500k)", newest first."""
    moves = [
        f"<- {older.member} (at {short(younger.begin)})"
        for younger, older in pairwise(lineage.ancestry(member))
        if younger.member != older.member
    ]
    if not moves:
        return "its own"
    if len(moves) > SHOWN_ANCESTORS + 1:
        moves[SHOWN_ANCESTORS:-1] = [f"<- {len(moves) - SHOWN_ANCESTORS - 1} more"]
    return " ".join(moves)


def plot(lineage: Lineage) -> bytes:
    """Plot the lineage as a PNG: a row per member, colored by score; arrows are copies, black is the best's descent."""
    figure = Figure((7.6, 0.44 * lineage.members + 1.4), layout="constrained")
    axes: Any = figure.subplots()  # pyright: ignore[reportUnknownMemberType]
    shown = lineage.stretches()
    scores = [stretch.score for stretch in shown if not math.isnan(stretch.score)]
    scale, colors = Normalize(min(scores, default=0.0), max(scores, default=1.0)), colormaps["viridis"]
    members, begins, ends = zip(*((stretch.member, stretch.begin, stretch.end) for stretch in shown), strict=True)
    shades = [UNKNOWN if math.isnan(stretch.score) else colors(scale(stretch.score)) for stretch in shown]
    axes.hlines(members, begins, ends, colors=shades, linewidth=10)
    arrow = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.002, "color": "#505050"}
    if lineage.transfers:
        steps, sources, targets = np.transpose(lineage.transfers)
        axes.quiver(steps, sources, np.zeros(len(steps)), targets - sources, **arrow)
    chain = lineage.ancestry(lineage.best())
    path = [(step, stretch.member) for stretch in chain for step in (stretch.end, stretch.begin)]
    axes.plot(*zip(*path, strict=True), color="black", linewidth=1.4)
    axes.set(
        xlim=(0, 1.01 * max(lineage.step, 1)),
        ylim=(lineage.members - 0.5, -0.5),
        yticks=range(lineage.members),
        ylabel="member",
        xlabel="environment steps of the whole population",
        title=f"generation {lineage.generation}: member {lineage.best()} is best, its descent in black",
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    figure.colorbar(ScalarMappable(scale, colors), ax=axes, label="mean return")
    figure.savefig(file := io.BytesIO(), format="png")  # pyright: ignore[reportUnknownMemberType]
    return file.getvalue()


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
    if isinstance(made, dict) and isinstance(logged, dict):
        return made.keys() == logged.keys() and all(same(logged[name], made[name]) for name in made)
    if isinstance(made, float) and isinstance(logged, int | float):
        return math.isclose(logged, made, rel_tol=PRECISION)
    return logged == made
