"""Panels as pictures, without a browser."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...agents.inside import Panel
from .page import finite, span

SHARE = ("#0d0b2a", "#3b1268", "#82206d", "#c83e57", "#f0703a", "#fbb61a", "#fcfda4")
LINES = ("#3b82c4", "#d9480f", "#2b9a5b", "#9b59b6", "#b8860b", "#0e9aa7", "#c2255c", "#6b7280", "#7c5cff", "#84a514")
SIGNED = ("#1b4f9c", "#5d96cf", "#bcd6ec", "#f3f3f3", "#f6c3a8", "#d9744e", "#9c2a17")


def heat_map(panel: Panel, width: int, height: int) -> NDArray[np.uint8]:
    """A panel's values as colours, uint8 [height, width, 3]."""
    low, high = span(panel)
    scaled = np.clip((finite(panel.values, low, high) - low) / (high - low), 0, 1)
    coloured = _ramp(SIGNED if panel.scale == "signed" else SHARE)[(255 * scaled).round().astype(np.uint8)]
    return np.asarray(Image.fromarray(coloured).resize((width, height), Image.Resampling.BOX))


def curves(panel: Panel, width: int, height: int, paper: str, axis: str) -> NDArray[np.uint8]:
    """A panel's values as curves, uint8 [height, width, 3]; step t is in the middle of its column."""
    (low, high), steps = span(panel), panel.values.shape[1]
    image = Image.new("RGB", (width, height), paper)
    pen = ImageDraw.Draw(image)
    x = (np.arange(steps) + 0.5) / steps * width
    for edge in (0, height - 1):
        pen.line((0, edge, width, edge), axis, 1)
    for k, series in enumerate(finite(panel.values, low, high)):
        y = 3 + (height - 7) * (1 - (series - low) / (high - low))
        pen.line(np.stack([x, y], 1).ravel().tolist(), LINES[k % len(LINES)], 2)
    return np.asarray(image)


def _ramp(stops: Sequence[str]) -> NDArray[np.uint8]:
    """256 colours between the given ones."""
    rgb = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    return np.stack([np.interp(places, range(len(stops)), channel) for channel in rgb.T], 1).round().astype(np.uint8)
