"""Panels as pictures, without a browser: for moving pictures and for TensorBoard."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ...agents.inside import Panel
from .page import span

SHARE = ("#0d0b2a", "#3b1268", "#82206d", "#c83e57", "#f0703a", "#fbb61a", "#fcfda4")
SIGNED = ("#1b4f9c", "#5d96cf", "#bcd6ec", "#f3f3f3", "#f6c3a8", "#d9744e", "#9c2a17")
BACKGROUND, WORDS = (24, 24, 27), (235, 235, 235)
MARGIN, TEXT, GUTTER = 10, 14, 170


def heat_map(panel: Panel, width: int, height: int) -> NDArray[np.uint8]:
    """A panel's values as colours, uint8 [height, width, 3]."""
    low, high = span(panel)
    scaled = np.clip((panel.values - low) / (high - low), 0, 1)
    coloured = _ramp(SIGNED if panel.scale == "signed" else SHARE)[(255 * scaled).round().astype(np.uint8)]
    return np.asarray(Image.fromarray(coloured).resize((width, height), Image.Resampling.BOX))


def sheet(panels: Sequence[Panel], width: int = 900) -> NDArray[np.uint8]:
    """The heat maps among some panels below each other, with titles and names of bands: uint8 [H, W, 3]."""
    shown = [panel for panel in panels if panel.kind == "heat"]
    heights = [min(max(12 * len(panel.values), 40), 260) for panel in shown]
    image = Image.new("RGB", (width, sum(height + TEXT + 2 * MARGIN for height in heights) + MARGIN), BACKGROUND)
    pen, font, small, top = ImageDraw.Draw(image), ImageFont.load_default(TEXT), ImageFont.load_default(11), MARGIN
    for panel, height in zip(shown, heights, strict=True):
        pen.text((GUTTER, top), panel.title, WORDS, font)
        top += TEXT + MARGIN // 2
        image.paste(Image.fromarray(heat_map(panel, width - GUTTER - MARGIN, height)), (GUTTER, top))
        for name, place in _names(panel):
            pen.text((GUTTER - 8, top + place * height), name, WORDS, small, anchor="rm")
        top += height + MARGIN + MARGIN // 2
    return np.asarray(image)


def _names(panel: Panel) -> list[tuple[str, float]]:
    """What stands beside a heat map, and where: 0 top, 1 bottom."""
    rows = len(panel.labels)
    if panel.bands:
        ends = [first for _, first in panel.bands[1:]] + [rows]
        return [(name, (first + end) / 2 / rows) for (name, first), end in zip(panel.bands, ends, strict=True)]
    return [(name, (row + 0.5) / rows) for row, name in enumerate(panel.labels)] if rows <= 20 else []


def _ramp(stops: Sequence[str]) -> NDArray[np.uint8]:
    """256 colours between the given ones."""
    rgb = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    return np.stack([np.interp(places, range(len(stops)), channel) for channel in rgb.T], 1).round().astype(np.uint8)
