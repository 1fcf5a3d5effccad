"""Images of environments for human viewers: cells, discs and texts on a grid."""

from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .arrays import Array

Color = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
SMOOTH = 3  # Factor by which everything is painted larger before the image is averaged down
_font = cache(ImageFont.load_default)


def rgb(values: Any) -> Color:
    """Convert three values, e.g. a row of a palette, to a color."""
    red, green, blue = map(int, values)
    return red, green, blue


class Canvas:
    """A grid of rows x cols cells of `cell` pixels. Positions and sizes are in cells; (0, 0) is the top left cell."""

    def __init__(self, rows: int, cols: int, cell: int = 24, background: Color = BLACK) -> None:
        self.rows, self.cols, self._scale = rows, cols, cell * SMOOTH
        self.words: list[tuple[float, float, str, Color, float]] = []
        """Texts: the row and column where each starts, its characters, color and height."""
        self._image = Image.new("RGB", (cols * self._scale, rows * self._scale), background)

    def fill(self, row: int, col: int, color: Color) -> None:
        """Paint the cell (row, col)."""
        ImageDraw.Draw(self._image).rectangle(self._box(row, col, 1), fill=color)

    def disc(self, row: int, col: int, color: Color, diameter: float = 0.8) -> None:
        """Draw a disc in the middle of the cell (row, col)."""
        gap = (1 - diameter) / 2
        ImageDraw.Draw(self._image).ellipse(self._box(row + gap, col + gap, diameter), fill=color)

    def text(self, row: float, col: float, words: str, color: Color = WHITE, height: float = 0.7) -> None:
        """Write text that starts in the cell (row, col), above everything else."""
        self.words.append((row, col, words, color, height))

    def pixels(self, height: int, width: int) -> Array:
        """Return the image without texts, uint8 [height, width, 3]."""
        return np.array(self._image.resize((width, height), Image.Resampling.BOX), np.uint8)

    def image(self) -> Array:
        """Return the complete image, uint8 [H, W, 3]."""
        image = self._image.copy()
        draw = ImageDraw.Draw(image)
        for row, col, label, color, height in self.words:
            at = (col * self._scale, (row + 0.5) * self._scale)
            draw.text(at, label, color, _font(height * self._scale), anchor="lm")
        return np.array(image.reduce(SMOOTH), np.uint8)

    def _box(self, row: float, col: float, side: float) -> tuple[float, float, float, float]:
        corner = (col * self._scale, row * self._scale)
        return (*corner, (col + side) * self._scale - 1, (row + side) * self._scale - 1)


def mosaic(colors: Array, cell: int = 24) -> Canvas:
    """Return a canvas whose cells have `colors`, RGB [rows, cols, 3] of 0..255."""
    rows, cols, _ = colors.shape
    canvas = Canvas(rows, cols, cell)
    image = Image.fromarray(np.asarray(colors, np.uint8))
    canvas._image = image.resize(canvas._image.size, Image.Resampling.NEAREST)  # pyright: ignore[reportPrivateUsage]
    return canvas
