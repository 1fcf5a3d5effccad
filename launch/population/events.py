"""A population in TensorBoard: best, median and worst member, the lineage as an image, and the page's layout.

Every member has a separate run next to this one (`members/<i>/tensorboard`), so that their curves overlay.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..metrics import events
from ..metrics.writer import LOG10, MetricsWriter, is_learning_rate
from ..run.config import RunConfig
from .lineage import Lineage
from .lineage_plot import plot, size

PICTURE_SECONDS = 20.0  # Minimum seconds between two images: one takes a sixth of a second


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
        self.writer.write(step, spread(returns) | dict(others))

    def close(self) -> None:
        """Render the lineage if it has changed."""
        if self._new:
            self._draw()

    def _draw(self) -> None:
        self._rendered_at, self._new = self._clock(), False
        lineage = self.lineage
        width, height = size(lineage)
        self.writer.show(events.image(lineage.step, "population/lineage", plot(lineage), width, height))


def spread(returns: Sequence[float | None]) -> dict[str, float]:
    """Best, median and worst return of the members; empty if no member has one."""
    finite = [x for x in returns if x is not None and math.isfinite(x)]
    if not finite:
        return {}
    values = {"best": max(finite), "median": statistics.median(finite), "worst": min(finite)}
    return {f"population/{name}_return": value for name, value in values.items()}


def charts(explored: Sequence[str], fields: Sequence[str]) -> events.Charts:
    """The layout of the custom-scalars tab: the members' returns, their settings over time, their losses.

    Args:
        explored: settings that differ between members, by dotted names.
    """
    how_well = {
        "return of every member": ["^episode/return$"],
        "best, median, worst": [r"^population/(best|median|worst)_return$"],
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
