"""A comparison as a figure: a panel of curves per environment, and the final interquartile means."""

import io
import math
from collections.abc import Sequence
from typing import Any

from .groups import Comparison
from .report import ALL, Result
from .statistics import curve_of

DPI = 150
STYLES = [(f"C{color}", dashes) for dashes in ("-", "--", ":") for color in range(10)]  # Color and line of each curve


def draw(comparison: Comparison, results: Sequence[Result]) -> bytes:
    """The figure as PNG."""
    from matplotlib.figure import Figure  # takes half a second

    places = list(comparison.environments)
    figure = Figure((5.0 * len(places) + 4.0, 4.0), layout="tight")
    panels: Any = figure.subplots(1, len(places) + 1, squeeze=False)[0]
    for axes, place in zip(panels, places, strict=False):
        _draw_curves(axes, comparison, place)
    _draw_means(panels[-1], comparison, results)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})  # pyright: ignore[reportUnknownMemberType]
    return out.getvalue()


def _draw_curves(axes: Any, comparison: Comparison, place: str) -> None:
    """Interquartile means with their bands, and a thin line per run."""
    steps = comparison.environments[place].steps / 1e6
    for number, (curve, cells) in enumerate(comparison.cells.items()):
        if place not in cells:
            continue
        color, dashes = STYLES[number % len(STYLES)]
        seeds, values = cells[place].seeds, cells[place].values
        middle, low, high = curve_of(values)
        axes.plot(steps, middle, dashes, color=color, label=f"{curve} ({len(seeds)})")
        if len(seeds) > 1:
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
            axes.plot(steps, values.T, color=color, alpha=0.3, linewidth=0.5)
    axes.set(title=place, xlabel="million environment steps", ylabel=comparison.metric)
    axes.legend(fontsize=8)


def _draw_means(axes: Any, comparison: Comparison, results: Sequence[Result]) -> None:
    """Final interquartile means, over all environments if there are several."""
    curves, several = list(comparison.cells), len(comparison.environments) > 1
    for result in results:
        last = ALL if several else list(comparison.cells[result.curve])[-1]
        if not result.versus and result.environment == last:
            number, (value, low, high) = curves.index(result.curve), result.estimate
            error = None if math.isnan(low) else [[value - low], [high - value]]
            axes.errorbar([value], [number], xerr=error, fmt="o", color=STYLES[number % len(STYLES)][0])
    axes.set_yticks(range(len(curves)), curves)
    axes.set_ylim(len(curves) - 0.5, -0.5)
    axes.set(title="final IQM, scaled, all environments" if several else "final IQM", xlabel=comparison.metric)
