"""Pictures of worlds for people: cells, symbols and captions on a grid."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .arrays import Array

Colour = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def rgb(values: Any) -> Colour:
    """The colour of three numbers, e.g. a row of a palette."""
    red, green, blue = (int(value) for value in values)
    return red, green, blue


class Canvas:
    """A grid of rows x cols cells; positions and sizes are in cells, (0, 0) is the top left cell.

    Args:
        rows, cols: size of the grid.
        cell: pixels per cell.
        background: colour of everything not painted.
        caption_rows: rows of text below the grid.
    """

    SMOOTH = 3
    """Everything is painted this many times larger and then averaged down."""

    def __init__(self, rows: int, cols: int, cell: int = 24, background: Colour = BLACK, caption_rows: int = 0) -> None:
        self.rows, self.cols, self.cell = rows, cols, cell
        self._scale = cell * self.SMOOTH
        size = (cols * self._scale, (rows + caption_rows) * self._scale)
        self._image = Image.new("RGB", size, background)
        self._draw = ImageDraw.Draw(self._image)

    def fill(self, row: float, col: float, colour: Colour, height: float = 1, width: float = 1) -> None:
        """A filled rectangle whose top left corner is (row, col)."""
        self._draw.rectangle(self._box(row, col, height, width), fill=colour)

    def disc(self, row: float, col: float, colour: Colour, diameter: float = 0.8) -> None:
        """A disc in the middle of the cell (row, col)."""
        gap = (1 - diameter) / 2
        self._draw.ellipse(self._box(row + gap, col + gap, diameter, diameter), fill=colour)

    def wedge(self, row: float, col: float, colour: Colour, facing: float, mouth: float, diameter: float = 0.9) -> None:
        """A disc with a slice of `mouth` degrees cut out, turned to `facing` degrees (0 right, 90 down)."""
        gap = (1 - diameter) / 2
        box = self._box(row + gap, col + gap, diameter, diameter)
        self._draw.pieslice(box, facing + mouth / 2, facing + 360 - mouth / 2, fill=colour)

    def shape(self, row: float, col: float, colour: Colour, *points: tuple[float, float]) -> None:
        """A filled polygon; points (row, col) are relative to the top left corner of the cell."""
        corners = [((col + c) * self._scale, (row + r) * self._scale) for r, c in points]
        self._draw.polygon(corners, fill=colour)

    def text(self, row: float, col: float, words: str, colour: Colour = WHITE, height: float = 0.7) -> None:
        """Words that start in the cell (row, col)."""
        font = ImageFont.load_default(height * self._scale)
        self._draw.text((col * self._scale, (row + 0.5) * self._scale), words, colour, font, anchor="lm")

    def picture(self) -> Array:
        """What has been painted: uint8 [H, W, 3]."""
        width, height = self._image.size
        small = self._image.resize((width // self.SMOOTH, height // self.SMOOTH), Image.Resampling.BOX)
        return np.array(small, np.uint8)

    def _box(self, row: float, col: float, height: float, width: float) -> tuple[float, float, float, float]:
        corner = (col * self._scale, row * self._scale)
        return (*corner, (col + width) * self._scale - 1, (row + height) * self._scale - 1)
