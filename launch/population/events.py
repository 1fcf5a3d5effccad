"""A population in TensorBoard: best, median and worst member, the lineage as image and text, and the page's layout.

Every member has a separate run next to this one (`members/<i>/tensorboard`), so that their curves overlay.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..metrics import events
from ..metrics.panel import short
from ..metrics.writer import LOG10, MetricsWriter, is_learning_rate
from ..run.config import RunConfig
from .lineage import Lineage, descent, families
from .lineage_plot import plot, size

PICTURE_SECONDS = 20.0
"""Minimum seconds between two images: one takes a sixth of a second."""
SPREAD = ("best", "median", "worst")
SPREAD_TAG = "population/return"
"""Tag of the mean return of the best, the median and the worst member, each a run in TensorBoard."""
PAGE = "ancestry/lineage"
"""Tag of the text: before `config` in the alphabet, since the members' configurations are long."""


class PopulationWriter:
    """Shows a population in TensorBoard, from every event of its log and periodic returns of its members.

    Args:
        writer: writes the metrics of the whole population; stays open.
        past: the events of the log before this process.
        clock: returns seconds since a fixed moment.
    """

    def __init__(
        self,
        writer: MetricsWriter,
        config: RunConfig,
        fields: Sequence[str],
        past: Iterable[Mapping[str, Any]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer, self._clock = writer, clock
        self.lineage = Lineage(past)
        # TensorBoard gives all curves of a run one color, so each of the three is a run.
        self._spread = {name: writer.sibling(f"spread/{name}") for name in SPREAD}
        self._rendered_at, self._new = -math.inf, False
        explored = [each.setting for each in config.pbt.explored]
        # Every process writes it again, so that deleted files are restored.
        self.writer.show(events.layout(self.lineage.step, charts(explored, fields)))

    def event(self, event: Mapping[str, Any]) -> None:
        """Process the next event of the log."""
        self.lineage.add(event)
        self._new = True
        if event["event"] != "start" and self._clock() - self._rendered_at >= PICTURE_SECONDS:
            self._draw()

    def row(self, step: int, returns: Sequence[float | None], others: Mapping[str, float]) -> None:
        """Write a row: the spread of the members' mean returns (None before there are enough episodes), and others."""
        values = spread(returns)
        self.writer.write(step, values | dict(others))
        for name, own in self._spread.items():
            if values:
                own.show(events.scalars(step, {SPREAD_TAG: values[f"population/{name}_return"]}))

    def close(self) -> None:
        """Render the lineage if it has changed."""
        if self._new:
            self._draw()
        for own in self._spread.values():
            own.close()

    def _draw(self) -> None:
        self._rendered_at, self._new = self._clock(), False
        lineage = self.lineage
        width, height = size(lineage)
        self.writer.show(events.image(lineage.step, "population/lineage", plot(lineage), width, height))
        self.writer.show(events.markdown(lineage.step, PAGE, page(lineage)))


def spread(returns: Sequence[float | None]) -> dict[str, float]:
    """Best, median and worst return of the members; empty if no member has one."""
    finite = [x for x in returns if x is not None and math.isfinite(x)]
    if not finite:
        return {}
    values = {"best": max(finite), "median": statistics.median(finite), "worst": min(finite)}
    return {f"population/{name}_return": value for name, value in values.items()}


def page(lineage: Lineage) -> str:
    """The lineage as Markdown: the families, then every member's descent."""
    head = (
        f"Generation {lineage.generation}, after {short(lineage.step)} steps; {len(lineage.transfers)} copies so far."
    )
    rows = [f"| {founder} | {', '.join(map(str, now))} |" for founder, now in families(lineage).items()]
    table = ["| member at the start | members that descend from it now |", "|---|---|", *rows]
    return "\n".join([head, "", *table, "", *(f"* member {i}: {descent(lineage, i)}" for i in range(lineage.members))])


def charts(explored: Sequence[str], fields: Sequence[str]) -> events.Charts:
    """The layout of the custom-scalars tab: the members' returns, their settings over time, their losses.

    Args:
        explored: settings that differ between members, by dotted names.
    """
    how_well = {
        "return of every member": ["^episode/return$"],
        "best, median, worst": [f"^{SPREAD_TAG}$"],
    }
    return {
        "Population": how_well | ({"solved": ["^episode/solved$"]} if "solved" in fields else {}),
        "Settings": dict(_setting(name) for name in explored),
        "Learning": {
            "entropy of the policy": ["^policy/entropy$"],
            "value loss": ["^loss/value$"],
            "gradient norm": ["^learner/grad_norm$"],
        },
    }


def _setting(name: str) -> tuple[str, list[str]]:
    """Title and tags of a setting's chart."""
    if is_learning_rate(name):
        return f"log10 of {name}", [f"^population/{re.escape(name)}{LOG10}$"]
    return name, [f"^population/{re.escape(name)}$"]
