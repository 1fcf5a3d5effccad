"""The lineage of a population as a plot: one row per member, time to the right, colored by score."""

import io
import math
from itertools import groupby

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter

from ..metrics.panel import short
from .lineage import Lineage

WIDTH, ROW_HEIGHT, MARGIN = 760, 44, 140
"""Pixels: the plot's width, the height of one member's row, and that of title and axis together."""
UNKNOWN = "#b8b8b8"  # Color of weights that were never evaluated
_DPI, _FONT = 100, 13  # TensorBoard shows images at half their size until they are clicked on
_COLORS = colormaps["viridis"]
_APART = 0.004  # Distance between arrows of the same step, as a fraction of the plot's width
_REACH = 0.2  # Arrows end this much of a row before the middle of the member's line


def size(lineage: Lineage) -> tuple[int, int]:
    """Width and height of the plot in pixels."""
    return WIDTH, ROW_HEIGHT * lineage.members + MARGIN


def plot(lineage: Lineage) -> bytes:
    """The plot as a PNG of `size`. Thick lines are weights from which current ones descend, thin ones were replaced
    later; arrows are copies. The black line is the descent of the currently best member."""
    width, height = size(lineage)
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    scores = [stretch.score for stretch in lineage.stretches() if not math.isnan(stretch.score)]
    scale = Normalize(min(scores, default=0.0), max(scores, default=1.0))
    _draw_lives(axes, lineage, scale)
    _draw_copies(axes, lineage)
    _draw_descent(axes, lineage)
    axes.set_xlim(0, 1.01 * max(lineage.step, 1))  # so that the newest copies are visible
    axes.set_ylim(lineage.members - 0.5, -0.5)
    axes.set_yticks(range(lineage.members))
    axes.set_ylabel("member", fontsize=_FONT)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.set_xlabel("environment steps of the whole population", fontsize=_FONT)
    title = f"generation {lineage.generation}: member {lineage.best()} is best, its descent in black"
    axes.set_title(title, loc="left", fontsize=_FONT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False, labelsize=_FONT)
    bar = figure.colorbar(ScalarMappable(scale, _COLORS), ax=axes, fraction=0.03, pad=0.01)
    bar.set_label("mean return", fontsize=_FONT)
    bar.ax.tick_params(labelsize=_FONT)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _draw_lives(axes: Axes, lineage: Lineage, scale: Normalize) -> None:
    """Every stretch as a line in its member's row."""
    alive = lineage.surviving()
    shown = [(i, stretch) for i, stretch in enumerate(lineage.stretches()) if stretch.end > stretch.begin]
    if not shown:
        return  # no stretch has a length yet, and matplotlib needs at least one line
    lives = LineCollection(
        [[(stretch.begin, stretch.member), (stretch.end, stretch.member)] for _, stretch in shown],
        colors=[UNKNOWN if math.isnan(stretch.score) else _COLORS(scale(stretch.score)) for _, stretch in shown],
        linewidths=[12 if i in alive else 4 for i, _ in shown],
        alpha=[1.0 if i in alive else 0.55 for i, _ in shown],
        capstyle="butt",
    )
    axes.add_collection(lives)


def _draw_copies(axes: Axes, lineage: Lineage) -> None:
    """Every copy as an arrow from row to row; those of one step side by side."""
    shafts: list[list[tuple[float, float]]] = []
    heads: dict[str, list[tuple[float, float]]] = {"v": [], "^": []}
    for step, together in groupby(lineage.transfers, key=lambda transfer: transfer.step):
        for number, (_, _, source, target) in enumerate(together):
            x = step + number * _APART * lineage.step
            down = target > source
            end = target - _REACH if down else target + _REACH
            shafts.append([(x, source), (x, end)])
            heads["v" if down else "^"].append((x, end))
    axes.add_collection(LineCollection(shafts, colors="#707070", linewidths=0.9, zorder=3))
    for marker, places in heads.items():
        x, y = [place[0] for place in places], [place[1] for place in places]
        axes.scatter(x, y, s=18, color="#505050", marker=marker, zorder=3)


def _draw_descent(axes: Axes, lineage: Lineage) -> None:
    """The path of the best member's weights through the rows."""
    chain = lineage.ancestry(lineage.best())
    axes.plot(
        [step for stretch in chain for step in (stretch.end, stretch.begin)],
        [stretch.member for stretch in chain for _ in range(2)],
        color="black",
        linewidth=1.4,
        path_effects=[Stroke(linewidth=2.6, foreground="white"), Normal()],
        zorder=4,
    )
