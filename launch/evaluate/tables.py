"""Results of an evaluation as tables for the terminal."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from ... import zoo
from ..runs.saved import Trainee, best_member
from .episodes import RATES, Estimate, Group, Summary


def show(summary: Summary, title: str, console: Console) -> None:
    """Print a table with a row for all episodes, then a row for each kind of level."""
    names = _names(summary)
    table = _table(title, "levels", names)
    _add_row(table, ["all"], summary.all, names)
    for field_name, groups in summary.split.items():
        table.add_section()
        for value, group in groups.items():
            label = f"{field_name.removeprefix('num_').replace('_', ' ')} {value}"
            _add_row(table, [label], group, names)
    console.print(table)


def show_members(summaries: dict[int, Summary], trainees: list[Trainee], title: str, console: Console) -> None:
    """Print a table with a row per member; the one that was best in training is bold."""
    names = _names(*summaries.values())
    best = best_member(trainees)
    table = _table(title, "member", names, "in training")
    for member, summary in summaries.items():
        score = trainees[member].score
        text = "?" if score is None else f"{score:.2f}"
        _add_row(table, [f"{member}", text], summary.all, names, "bold" if member == best else None)
    console.print(table)


def _names(*summaries: Summary) -> list[str]:
    names = dict.fromkeys(name for summary in summaries for name in summary.all.estimates)
    return sorted(names, key=lambda name: name not in RATES)


def _table(title: str, of: str, names: Sequence[str], *others: str) -> Table:
    columns = (Column(name.replace("_", " "), justify="right") for name in (*others, "episodes", *names))
    return Table(Column(of, no_wrap=True), *columns, title=title, title_justify="left")


def _add_row(table: Table, labels: list[str], group: Group, names: Sequence[str], style: str | None = None) -> None:
    cells = [format_estimate(name, group.estimates[name]) if name in group.estimates else "" for name in names]
    table.add_row(*labels, f"{group.episodes:,}", *cells, style=style)


def format_estimate(name: str, estimate: Estimate) -> str:
    """Format a mean and its interval, e.g. "91.2% [89.3, 92.8]"; a length has no interval, to fit narrow terminals."""
    mean, low, high = (100 * x for x in estimate) if name in RATES else estimate
    form, unit = ("{:.1f}", "%") if name in RATES else ("{:.2f}", "")
    if name == "length":
        return f"{mean:.1f}"
    interval = f" [{form.format(low)}, {form.format(high)}]" if np.isfinite(low) else ""
    return form.format(mean) + unit + interval


def zoo_table() -> Table:
    """Tabulate the included agents: environment, core, evaluated return with 95% interval, training steps."""
    columns = Column("name", no_wrap=True), "environment", "core", "return", "steps"
    table = Table(*columns, title="agents included in engram", title_justify="left")
    for name in zoo.names():
        facts = zoo.facts(name)
        interval = "{mean:.3g} [{low:.3g}, {high:.3g}]".format(**facts["evaluation"]["return"])
        steps = f"{facts['provenance']['steps'] / 1e6:,.1f} M"
        table.add_row(f"zoo:{name}", zoo.environment(facts), facts["core"], interval, steps)
    return table
