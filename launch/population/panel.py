"""Progress display of a population: the panel of a run, with a table of members below."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from ..metrics.panel import Panel, short

WIDEST = 8  # Column width in characters; longer names of settings are wrapped


class MemberRow(NamedTuple):
    steps: int  # Environment steps that the member has learned from
    episodes: int
    score: float | None  # Mean return of the last episodes; None before there are enough
    values: Mapping[str, float]  # Explored settings by dotted name
    origin: str  # Where the weights come from


def best_of(rows: Sequence[MemberRow]) -> int | None:
    """Find the first member with the highest score, if any member has a score."""
    scored = [(row.score, -member) for member, row in enumerate(rows) if row.score is not None]
    return -max(scored)[1] if scored else None


def members_table(rows: Sequence[MemberRow], title: str | None = None, best: int | None = None) -> Table:
    """Make a table with one row per member, in which `best` is highlighted."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    names = list(rows[0].values)
    for name in ("member", "return", "steps", "episodes", *(name.rpartition(".")[2] for name in names)):
        table.add_column(name, justify="right", overflow="fold", min_width=min(len(name), WIDEST))
    table.add_column("weights from", overflow="fold")
    for member, row in enumerate(rows):
        counts = to_text(row.score), short(row.steps), short(row.episodes)
        values = (f"{row.values[name]:.3g}" for name in names)
        table.add_row(f"{member}", *counts, *values, row.origin, style="bold green" if member == best else None)
    return table


def to_text(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


class PopulationPanel(Panel):
    """A panel with a table of the members, if there are any."""

    _rows: Sequence[MemberRow] = ()
    _source: Callable[[], Sequence[MemberRow]] = tuple

    def members(self, rows: Callable[[], Sequence[MemberRow]]) -> None:
        """Show these rows, in member order; they are read in the caller's thread."""
        self._source = rows
        self._refresh()

    def _refresh(self) -> None:
        self._rows = self._source()

    def _line(self) -> str:
        if not self._rows:
            return super()._line()
        best = best_of(self._rows)
        returns = " ".join(to_text(row.score) + "*" * (i == best) for i, row in enumerate(self._rows))
        return f"{super()._line()}  returns of members 0..{len(self._rows) - 1}: {returns}"

    def _content(self) -> RenderableType:
        table = [members_table(self._rows, best=best_of(self._rows))] if self._rows else []
        return Group(super()._content(), *table)
