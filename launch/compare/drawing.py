"""A comparison as a figure: a panel of curves per environment, and the final interquartile means."""

import io
import math
from collections.abc import Sequence
from typing import Any

from .groups import Cell, Comparison
from .report import Result
from .statistics import curve_of

DPI = 150
MANY = 10
"""Number of curves after which lines are dashed, since colors repeat."""


def draw(comparison: Comparison, results: Sequence[Result]) -> dict[str, bytes]:
    """The figure as PNG and SVG, by file ending."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    places = list(comparison.environments)
    with matplotlib.rc_context({"svg.hashsalt": "engram", "svg.fonttype": "none"}):
        width = 5.0 * len(places) + 4.0
        figure, panels = plt.subplots(1, len(places) + 1, figsize=(width, 4.0), squeeze=False)
        try:
            for axes, place in zip(panels[0], places, strict=False):
                _draw_curves(axes, comparison, place)
            _draw_means(panels[0][-1], comparison, results)
            figure.tight_layout()
            return {ending: _saved(figure, ending) for ending in ("png", "svg")}
        finally:
            plt.close(figure)


def _draw_curves(axes: Any, comparison: Comparison, place: str) -> None:
    for number, (curve, cells) in enumerate(comparison.cells.items()):
        if place in cells:
            _draw_curve(axes, comparison.environments[place].steps / 1e6, cells[place], curve, number)
    axes.set_title(place)
    axes.set_xlabel("million environment steps")
    axes.set_ylabel(comparison.metric)
    axes.legend(fontsize=8)


def _draw_curve(axes: Any, steps: Any, cell: Cell, curve: str, number: int) -> None:
    """Interquartile mean with its band, and a thin line per run."""
    color, dashes = _style(number)
    middle, low, high = curve_of(cell.values)
    axes.plot(steps, middle, dashes, color=color, label=f"{curve} ({len(cell.seeds)})")
    if len(cell.seeds) > 1:
        axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, cell.values.T, color=color, alpha=0.3, linewidth=0.5)


def _draw_means(axes: Any, comparison: Comparison, results: Sequence[Result]) -> None:
    """Final interquartile means, over all environments if there are several."""
    curves = list(comparison.cells)
    for result in results:
        last = list(comparison.cells[result.curve])[-1] if len(comparison.environments) == 1 else "all"
        if result.versus or result.environment != last:
            continue
        number = curves.index(result.curve)
        value, low, high = result.estimate
        color, _ = _style(number)
        axes.plot([value], [number], "o", color=color)
        if not math.isnan(low):
            axes.plot([low, high], [number, number], color=color)
    axes.set_yticks(range(len(curves)), curves)
    axes.set_ylim(len(curves) - 0.5, -0.5)
    scaled = ", scaled, all environments" if len(comparison.environments) > 1 else ""
    axes.set_title(f"final IQM{scaled}")
    axes.set_xlabel(comparison.metric)


def _style(number: int) -> tuple[str, str]:
    return f"C{number % MANY}", ("-", "--", ":")[number // MANY % 3]


def _saved(figure: Any, ending: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    figure.savefig(out, format=ending, dpi=DPI, metadata=metadata)
    return out.getvalue()
