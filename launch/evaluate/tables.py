"""Results of an evaluation as tables for the terminal."""

from collections.abc import Sequence

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from ..runs.saved import Trainee, best_member
from .decode import Reading
from .episodes import RATES, Estimate, Group, Summary
from .intervene import Effect


def level_table(summary: Summary, title: str) -> Table:
    """A row for all episodes, then a row for each kind of level."""
    rows = [(("all",), summary.all)]
    for name, groups in summary.split.items():
        label = name.removeprefix("num_").replace("_", " ")
        rows += [((f"{label} {value}",), group) for value, group in groups.items()]
    return _table(title, ("levels",), rows)


def member_table(summaries: dict[int, Summary], trainees: list[Trainee], title: str) -> Table:
    """A row per member, with its score in training; the number of the best one is bold."""
    rows: list[tuple[tuple[str | Text, ...], Group]] = []
    for member, summary in summaries.items():
        score = trainees[member].score
        label = Text(f"{member}", "bold" if member == best_member(trainees) else "")
        rows.append(((label, "?" if score is None else f"{score:.2f}"), summary.all))
    return _table(title, ("member", "in training"), rows)


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[tuple[str | Text, ...], Group]]) -> Table:
    """Tabulate groups of episodes, each with its labels; rates come first."""
    names = dict.fromkeys(name for _, group in rows for name in group.estimates)
    names = sorted(names, key=lambda name: name not in RATES)
    cells = [
        (*labels, f"{group.episodes:,}", *(_format(name, group.estimates.get(name)) for name in names))
        for labels, group in rows
    ]
    return _grid(title, (*header, "episodes", *(name.replace("_", " ") for name in names)), cells)


def _grid(title: str, header: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    columns = (Column(name, justify="right" if k else "left", no_wrap=not k) for k, name in enumerate(header))
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _format(name: str, estimate: Estimate | None) -> str:
    """Format a mean and its interval, e.g. "91.2% [89.3, 92.8]"; a length has no interval, to fit narrow terminals."""
    if estimate is None:
        return ""
    mean, low, high = (100 * x for x in estimate) if name in RATES else estimate
    if name == "length":
        return f"{mean:.1f}"
    text, digits = (f"{mean:.1f}%", 1) if name in RATES else (f"{mean:.2f}", 2)
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) else text


def effect_table(points: list[Effect], title: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for step, reached, outcomes in points:
        for name, (without, changed, difference) in outcomes.items():
            form, by = ("{:.1f}%", 100) if name in RATES else ("{:.3f}", 1)
            mean, low, high = (by * x for x in difference)
            interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
            cells = [form.format(by * x) for x in (without, changed)]
            rows.append((str(step), f"{reached:,}", name, *cells, f"{mean:+.3g}{interval}"))
    return _grid(title, ("step", "reached by", "outcome", "undisturbed", "disturbed", "difference"), rows)


def reading_table(points: list[Reading], title: str) -> Table:
    rows = [
        (str(x.step), f"{x.episodes:,}", f"{x.accuracy:.1%} [{100 * x.low:.1f}, {100 * x.high:.1f}]", f"{x.chance:.1%}")
        for x in points
    ]
    return _grid(title, ("step", "episodes", "accuracy", "chance"), rows)
