"""Panels of an episode as one matplotlib figure: the image of --look-every, and the frames of rl-look --gif."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from ...agents.inside import Panel
from ...base.errors import refuse
from .page import finite, span
from .recording import Mark, Pixels, Recording

COLORMAPS = {"share": "inferno", "signed": "RdBu_r", "positive": "inferno"}
WIDTH, CURVES, LOWEST, HIGHEST = 8.6, 0.9, 0.5, 2.0
"""Inches at 100 pixels: the figure; a panel of curves; the minimum and the maximum of a heat map."""
MOST_NAMES = 12  # Maximum rows or curves with names
MARKED = "#f59e0b"
BOARD, BACKGROUND = 400, "#18181b"  # Pixels of a board's longer side, and its background color
MOST_PANELS, MOST_FRAMES, PALETTE = 2, 300, 96
"""Panels of the recurrent state in a film; frames, of a longer episode every second step, or every
third; colors."""
MILLISECONDS, LAST_MILLISECONDS = 120, 1500


def figure(panels: Sequence[Panel], title: str = "", marks: Sequence[Mark] = ()) -> Figure:
    """Panels over the steps 0..T-1 of an episode, one below the other; tables of a single step are omitted."""
    shown = [panel for panel in panels if panel.kind != "matrix"]
    heights = [CURVES if each.kind == "lines" else np.clip(0.1 * len(each.labels), LOWEST, HIGHEST) for each in shown]
    plot = Figure((WIDTH, sum(heights) + 0.35 * len(shown) + 0.6), 100, layout="constrained")
    axes = plot.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axis in zip(shown, axes, strict=True):
        low, high = span(panel)
        values = finite(panel.values, low, high)
        named = len(panel.labels) <= MOST_NAMES
        if panel.kind == "lines":
            for label, series in zip(panel.labels, values, strict=False):
                axis.plot(series, label=label, linewidth=1)
            if named:
                axis.legend(fontsize=6, loc="upper left", ncols=len(values))
        else:
            axis.imshow(values, COLORMAPS[panel.scale], aspect="auto", interpolation="nearest", vmin=low, vmax=high)
            axis.set_yticks(range(len(values)) if named else [], panel.labels if named else [], fontsize=6)
        axis.set_title(f"{panel.title}   {low:.3g} to {high:.3g}", fontsize=8, loc="left", parse_math=False)
        axis.tick_params(labelsize=6)
        for mark in marks:
            axis.axvline(mark.step, color=MARKED, linewidth=0.8)
    events = "   ".join(f"{mark.step}: {mark.text}" for mark in marks)[:150]
    if title or events:
        plot.suptitle(f"{title}\n{events}", fontsize=8, parse_math=False)
    return plot


def png(plot: Figure) -> tuple[bytes, int, int]:
    """A figure as a PNG file, its width and its height in pixels."""
    image = Image.fromarray(_pixels(plot))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue(), image.width, image.height


def film(recording: Recording, panels: Sequence[Panel]) -> bytes:
    """An animated GIF: board, view, and panels with the current step marked. Raises ValueError without boards."""
    refuse(not recording.boards, "this environment renders no images")
    policy, outcome, *memory = panels
    # Heat maps first: they show the parts of the recurrent state.
    chosen = sorted((p for p in memory if p.kind != "matrix"), key=lambda p: p.kind != "heat")[:MOST_PANELS]
    plot = figure([policy, outcome, *chosen])
    strips = Image.fromarray(_pixels(plot))
    steps = range(0, len(recording.values), -(-len(recording.values) // MOST_FRAMES))
    frames: list[Image.Image] = []
    for step in steps:
        boards = [_sized(images[step]) for images in (recording.boards, recording.views) if images]
        height = max(strips.height, sum(board.height for board in boards) + 20)
        frame = Image.new("RGB", (strips.width + BOARD, height), BACKGROUND)
        frame.paste(strips, (BOARD, 0))
        pen, top = ImageDraw.Draw(frame), 0
        for board in boards:
            frame.paste(board, ((BOARD - board.width) // 2, top))
            top += board.height
        total = float(recording.rewards[1 : step + 1].sum())
        pen.text((6, top + 4), f"step {step}   value {recording.values[step]:.2f}   return {total:.3g}", "white")
        x = BOARD + float(plot.axes[0].transData.transform((step, 0))[0])
        pen.line((x, 0, x, strips.height), MARKED, 2)
        frames.append(frame.quantize(PALETTE, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
    durations = [MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return file.getvalue()


def _pixels(plot: Figure) -> Pixels:
    canvas = FigureCanvasAgg(plot)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _sized(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(pixels)
    scale = BOARD / max(image.height, image.width)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
