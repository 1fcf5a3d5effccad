"""Lineage of a population, built from the events of its log, and its plot."""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..metrics.panel import short

SHOWN_ANCESTORS = 6  # Number of a member's ancestors to name, in addition to the first one
UNKNOWN = "#b8b8b8"  # Color of weights that were never evaluated


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
            # Without the evaluation's line, which a damaged log may have lost, the source's last weights are the parent.
            parent = self._sources.pop(target) if target in self._sources else self._end(source)
            self._end(target)
            self.transfers.append((self.step, source, target))
            self._open[target] = Stretch(target, self.step, self.step, self.closed[parent].score, parent)

    def stretches(self) -> list[Stretch]:
        """Return all stretches; the last ones are current, in member order."""
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
