"""Progress display of a population: the panel of a run, with a table of members below."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table

from ..metrics.panel import Panel, short


class MemberRow(NamedTuple):
    """Table row of one member."""

    member: int
    steps: int  # Environment steps that the member has learned from
    episodes: int
    score: float | None  # Mean return of the last episodes; None before there are enough
    solved: float | None  # Solved rate of the same episodes; None in environments without one
    values: Mapping[str, float]  # Explored settings by dotted name
    ancestor: int  # The initial member from which the weights descend


class PopulationPanel(Panel):
    """A panel with a table of the members."""

    _rows: Sequence[MemberRow] = ()
    _source: Callable[[], Sequence[MemberRow]] = tuple

    def members(self, rows: Callable[[], Sequence[MemberRow]]) -> None:
        """Show these rows, in member order; they are read in the caller's thread."""
        self._source = rows
        self._refresh()

    def _refresh(self) -> None:
        self._rows = self._source()

    def _line(self) -> str:
        """Describe the run in one line, with the returns of all members in order."""
        if not self._rows:
            return super()._line()
        returns = " ".join(_to_text(row.score) + "*" * (row.member == self._best()) for row in self._rows)
        return f"{super()._line()}  returns of members 0..{len(self._rows) - 1}: {returns}"

    def _content(self) -> RenderableType:
        return Group(super()._content(), self._table()) if self._rows else super()._content()

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
        names = list(self._rows[0].values)
        columns = ["member", "return", "solved", "steps", "episodes", *(name.rpartition(".")[2] for name in names)]
        for column in (*columns, "ancestor"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(
                f"{row.member}",
                _to_text(row.score),
                "" if row.solved is None else f"{row.solved:.1%}",
                short(row.steps),
                short(row.episodes),
                *(f"{row.values[name]:.3g}" for name in names),
                f"{row.ancestor}",
                style="bold green" if row.member == self._best() else None,
            )
        return table

    def _best(self) -> int | None:
        """Find the member with the highest score, if any member has a score."""
        scored = [row for row in self._rows if row.score is not None and not math.isnan(row.score)]
        return max(scored, key=lambda row: (row.score, -row.member)).member if scored else None


def _to_text(score: float | None) -> str:
    return "?" if score is None else f"{score:.3f}"
