"""Images of environments for human viewers: cells, symbols and captions on a grid.

A canvas renders an image. It also stores the content of each cell and the captions, so that a terminal can show
them with characters.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .arrays import Array

Color = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
_FLOOR, _DOT = 0.7, 0.45
"""In cells: rectangles with sides of at least this size count as floor, discs up to this diameter as dots."""


def rgb(values: Any) -> Color:
    """Convert three values, e.g. a row of a palette, to a color."""
    red, green, blue = (int(value) for value in values)
    return red, green, blue


class Cell(NamedTuple):
    """A cell as shown in a terminal: two characters."""

    floor: Color  # Color behind the characters
    sign: str = "  "  # Characters of the object in the cell
    ink: Color = BLACK  # Color of the characters


class Words(NamedTuple):
    """Text that starts in the cell (row, col)."""

    row: float
    col: float
    text: str
    color: Color
    height: float


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
        self.rows, self.cols, self.cell = rows, cols, cell
        self.background, self.freehand = background, freehand
        self.cells: dict[tuple[int, int], Cell] = {}
        self.words: list[Words] = []
        self._smooth, self._scale = smooth, cell * smooth
        size = (cols * self._scale, (rows + caption_rows) * self._scale)
        self._image = Image.new("RGB", size, background)
        self._draw = ImageDraw.Draw(self._image)

    def holds(self, row: int, col: int) -> bool:
        """Whether the cell (row, col) is inside the grid."""
        return 0 <= row < self.rows and 0 <= col < self.cols

    def fill(self, row: float, col: float, color: Color, height: float = 1, width: float = 1) -> None:
        """Draw a filled rectangle whose top left corner is (row, col)."""
        if min(height, width) >= _FLOOR:
            for r in range(round(row), round(row + height)):
                for c in range(round(col), round(col + width)):
                    self.cells[r, c] = Cell(color)
        self._draw.rectangle(self._box(row, col, height, width), fill=color)

    def mosaic(self, kinds: Array, palette: Sequence[Color]) -> None:
        """Fill all cells of the grid: `kinds`, integers [rows, cols], are indices into the palette."""
        cells = [Cell(color) for color in palette]
        rows, cols = kinds.shape
        at = product(range(rows), range(cols))
        self.cells.update(zip(at, map(cells.__getitem__, kinds.ravel().tolist()), strict=True))
        size = (cols * self._scale, rows * self._scale)
        colors = Image.fromarray(np.array(palette, np.uint8)[kinds])
        self._image.paste(colors.resize(size, Image.Resampling.NEAREST))

    def disc(self, row: float, col: float, color: Color, diameter: float = 0.8) -> None:
        """Draw a disc in the middle of the cell (row, col)."""
        self.sign(row, col, "██" if diameter > _DOT else " ·", color)
        gap = (1 - diameter) / 2
        self._draw.ellipse(self._box(row + gap, col + gap, diameter, diameter), fill=color)

    def wedge(self, row: float, col: float, color: Color, facing: float, mouth: float, diameter: float = 0.9) -> None:
        """Draw a disc with a slice of `mouth` degrees cut out, which faces `facing` degrees (0 right, 90 down)."""
        self.sign(row, col, "██", color)
        gap = (1 - diameter) / 2
        box = self._box(row + gap, col + gap, diameter, diameter)
        self._draw.pieslice(box, facing + mouth / 2, facing + 360 - mouth / 2, fill=color)

    def shape(self, row: float, col: float, color: Color, *points: tuple[float, float]) -> None:
        """Draw a filled polygon; points (row, col) are relative to the top left corner of the cell."""
        self.sign(row, col, "▟▙", color)
        corners = [((col + c) * self._scale, (row + r) * self._scale) for r, c in points]
        self._draw.polygon(corners, fill=color)

    def sign(self, row: float, col: float, sign: str, color: Color) -> None:
        """Set the two characters of the cell (row, col), used where images cannot be shown."""
        at = (round(row), round(col))
        floor = self.cells[at].floor if at in self.cells else self.background
        self.cells[at] = Cell(floor, sign, color)

    def text(self, row: float, col: float, words: str, color: Color = WHITE, height: float = 0.7) -> None:
        """Write text that starts in the cell (row, col), above everything else."""
        self.words.append(Words(row, col, words, color, height))

    def pixels(self, height: int, width: int) -> Array:
        """Return the grid without text and captions, uint8 [height, width, 3]."""
        grid = self._image.crop((0, 0, self.cols * self._scale, self.rows * self._scale))
        return np.array(grid.resize((width, height), Image.Resampling.BOX), np.uint8)

    def image(self) -> Array:
        """Return the complete image, uint8 [H, W, 3]."""
        image = self._image.copy() if self.words else self._image
        draw = ImageDraw.Draw(image)
        for row, col, label, color, height in self.words:
            font = ImageFont.load_default(height * self._scale)
            draw.text((col * self._scale, (row + 0.5) * self._scale), label, color, font, anchor="lm")
        return np.array(image.reduce(self._smooth) if self._smooth > 1 else image, np.uint8)

    def _box(self, row: float, col: float, height: float, width: float) -> tuple[float, float, float, float]:
        corner = (col * self._scale, row * self._scale)
        return (*corner, (col + width) * self._scale - 1, (row + height) * self._scale - 1)
