"""All panels of an episode below each other in one picture, for TensorBoard."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ...agents.inside import Panel
from . import drawing
from .page import span
from .recording import Mark

WIDTH, MARGIN, TEXT = 860, 12, 14
PAPER, WORDS, MARKED, AXIS = "#ffffff", "#202024", "#f59e0b", "#d4d4d8"
CURVES, LOWEST, HIGHEST = 90, 26, 200
"""Pixels: the height of a panel of curves, the least and the most of a heat map."""


class Sheet(NamedTuple):
    """A picture as a PNG file, and its size."""

    png: bytes
    width: int
    height: int


def sheet(title: str, panels: Sequence[Panel], marks: Sequence[Mark], steps: int) -> Sheet:
    """Panels over the steps 0..T-1 of an episode; tables of a single step are left out."""
    drawn = [(panel, _drawn(panel)) for panel in panels if panel.kind != "matrix"]
    line = TEXT + 6
    height = 2 * MARGIN + line * 2 + sum(line + len(picture) + MARGIN for _, picture in drawn)
    image = Image.new("RGB", (WIDTH + 2 * MARGIN, height), PAPER)
    pen, font, top = ImageDraw.Draw(image), ImageFont.load_default(TEXT), MARGIN
    pen.text((MARGIN, top), title, WORDS, font)
    events = "   ".join(f"{mark.step}: {mark.text}" for mark in marks)
    pen.text((MARGIN, top + line), _fitting(events, pen, font), MARKED, font)
    top += 2 * line
    for panel, picture in drawn:
        low, high = span(panel)
        words = f"{panel.title}   {low:.3g} to {high:.3g}"
        pen.text((MARGIN, top), _fitting(words, pen, font), WORDS, font)
        names, right = (list(enumerate(panel.labels)) if panel.kind == "lines" else []), WIDTH + MARGIN
        for k, name in reversed(names[: len(drawing.LINES)]):
            right -= int(pen.textlength(name, font)) + MARGIN
            if right > MARGIN + pen.textlength(words, font):
                pen.text((right, top), name, drawing.LINES[k], font)
        top += line
        image.paste(Image.fromarray(picture), (MARGIN, top))
        for mark in marks:
            x = MARGIN + round((mark.step + 0.5) / steps * WIDTH)
            pen.line((x, top, x, top + len(picture)), MARKED, 1)
        top += len(picture) + MARGIN
    file = io.BytesIO()
    image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG")
    return Sheet(file.getvalue(), image.width, image.height)


def _drawn(panel: Panel) -> NDArray[np.uint8]:
    if panel.kind == "heat":
        return drawing.heat_map(panel, WIDTH, min(HIGHEST, max(LOWEST, 9 * len(panel.labels))))
    return drawing.curves(panel, WIDTH, CURVES, PAPER, AXIS)


def _fitting(text: str, pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The beginning of a text that is as wide as the picture."""
    while pen.textlength(text, font) > WIDTH:
        text = text[: int(len(text) * 0.95) - 1] + "\u2026" if not text.endswith("\u2026") else text[:-6] + "\u2026"
    return text
