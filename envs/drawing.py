"""Images of environments for human viewers: cells, symbols and captions on a grid.

A canvas renders an image. It also stores the content of each cell and the captions, so that a terminal can show
them with characters.
"""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .arrays import Array

Color = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
_DOT = 0.45  # Discs up to this diameter, in cells, count as dots


def rgb(values: Any) -> Color:
    """Convert three values, e.g. a row of a palette, to a color."""
    red, green, blue = (int(value) for value in values)
    return red, green, blue


class Cell(NamedTuple):
    """A cell as shown in a terminal: two characters."""

    floor: Color  # Color behind the characters
    sign: str = "  "  # Characters of the object in the cell
    ink: Color = BLACK  # Color of the characters


class Canvas:
    """A grid of rows x cols cells. Positions and sizes are in cells; (0, 0) is the top left cell.

    Args:
        rows, cols: size of the grid.
        cell: pixels per cell.
        background: color of everything not painted.
        caption_rows: rows of text below the grid.
        freehand: whether lines cross cells, so that single cells have no meaning.
        smooth: factor by which everything is painted larger before the image is averaged down.
    """

    def __init__(
        self,
        rows: int,
        cols: int,
        cell: int = 24,
        background: Color = BLACK,
        caption_rows: int = 0,
        freehand: bool = False,
        smooth: int = 3,
    ) -> None:
        self.rows, self.cols = rows, cols
        self.background, self.freehand = background, freehand
        self.cells: dict[tuple[int, int], Cell] = {}
        self.words: list[tuple[float, float, str, Color, float]] = []
        """Texts: the row and column where each starts, its characters, color and height."""
        self._smooth, self._scale = smooth, cell * smooth
        self._image = Image.new("RGB", (cols * self._scale, (rows + caption_rows) * self._scale), background)
        self._draw = ImageDraw.Draw(self._image)

    def fill(self, row: float, col: float, color: Color, height: float = 1, width: float = 1) -> None:
        """Draw a filled rectangle whose top left corner is (row, col)."""
        for r in range(round(row), round(row + height)):
            for c in range(round(col), round(col + width)):
                self.cells[r, c] = Cell(color)
        self._draw.rectangle(self._box(row, col, height, width), fill=color)

    def mosaic(self, colors: Array, row: int = 0, col: int = 0) -> None:
        """Fill cells from (row, col) on with `colors`, RGB [height, width, 3] of 0..255."""
        height, width, _ = colors.shape
        flat = map(Cell, map(rgb, colors.reshape(-1, 3).tolist()))
        self.cells.update(zip(((row + r, col + c) for r, c in np.ndindex(height, width)), flat, strict=True))
        image = Image.fromarray(np.asarray(colors, np.uint8))
        size = (width * self._scale, height * self._scale)
        self._image.paste(image.resize(size, Image.Resampling.NEAREST), (col * self._scale, row * self._scale))

    def disc(self, row: float, col: float, color: Color, diameter: float = 0.8) -> None:
        """Draw a disc in the middle of the cell (row, col)."""
        self.sign(row, col, "██" if diameter > _DOT else " ·", color)
        gap = (1 - diameter) / 2
        self._draw.ellipse(self._box(row + gap, col + gap, diameter, diameter), fill=color)

    def line(self, start: tuple[float, float], end: tuple[float, float], color: Color, width: float = 0.1) -> None:
        """Draw a line between two points (row, col)."""
        points = [(col * self._scale, row * self._scale) for row, col in (start, end)]
        self._draw.line(points, color, round(width * self._scale))

    def sign(self, row: float, col: float, sign: str, color: Color) -> None:
        """Set the two characters of the cell (row, col), used where images cannot be shown."""
        at = (round(row), round(col))
        floor = self.cells[at].floor if at in self.cells else self.background
        self.cells[at] = Cell(floor, sign, color)

    def text(self, row: float, col: float, words: str, color: Color = WHITE, height: float = 0.7) -> None:
        """Write text that starts in the cell (row, col), above everything else."""
        self.words.append((row, col, words, color, height))

    def pixels(self, height: int, width: int) -> Array:
        """Return the grid without text and captions, uint8 [height, width, 3]."""
        grid = self._image.crop((0, 0, self.cols * self._scale, self.rows * self._scale))
        return np.array(grid.resize((width, height), Image.Resampling.BOX), np.uint8)

    def image(self) -> Array:
        """Return the complete image, uint8 [H, W, 3]."""
        image = self._image.copy()
        draw = ImageDraw.Draw(image)
        for row, col, label, color, height in self.words:
            font = ImageFont.load_default(height * self._scale)
            draw.text((col * self._scale, (row + 0.5) * self._scale), label, color, font, anchor="lm")
        return np.array(image.reduce(self._smooth), np.uint8)

    def _box(self, row: float, col: float, height: float, width: float) -> tuple[float, float, float, float]:
        corner = (col * self._scale, row * self._scale)
        return (*corner, (col + width) * self._scale - 1, (row + height) * self._scale - 1)
