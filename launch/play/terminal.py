"""A canvas in a terminal: colored characters by rich, and single key presses."""

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from rich.color import Color as RichColor
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ...envs.drawing import Canvas, Cell, Color

PIXELS = 4  # Minimum pixels per cell to show the image itself; with fewer, each cell is two characters
GAP = 2  # Columns between the board and its legend
UPPER_HALF = "▀"  # Shows two pixels, one above the other: ink and floor
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_KEY = re.compile(r"\x1b[\[O][\d;]*(?:([A-D])|.)|.", re.DOTALL)  # an arrow, another escape sequence, or a character


class Glyph(NamedTuple):
    """One character; None stands for the terminal's default color."""

    character: str
    ink: Color | None = None
    floor: Color | None = None


Line = list[Glyph]


def compose(canvas: Canvas, height: int, width: int) -> list[Line]:
    """Fit the canvas into `height` lines of `width` characters: the grid, then its captions."""
    captions = _captions(canvas, width)
    room = max(height - len(captions) - bool(captions), 1)
    scale = min(width / canvas.cols, 2 * room / canvas.rows)
    if scale < PIXELS and 2 * canvas.cols <= width and canvas.rows <= room and not canvas.freehand:
        blank = Cell(canvas.background)
        rows = [[canvas.cells.get((r, c), blank) for c in range(canvas.cols)] for r in range(canvas.rows)]
        grid = [[glyph for cell in row for glyph in _glyphs(cell)] for row in rows]
    else:
        grid = _pixels(canvas, scale)
    return [*grid, [], *captions] if captions else grid


def with_legend(canvas: Canvas, symbols: Sequence[tuple[Color, str]], height: int, width: int) -> RenderableType:
    """Render the canvas with a legend of its colors on the right, unless it would no longer show whole cells."""
    need = max((len(text) for _, text in symbols), default=0) + 3 + GAP
    if len(symbols) > height or (2 * canvas.cols > width - need and not canvas.freehand) or need > width // 2:
        return text_of(compose(canvas, height, width))
    legend = Text("\n").join(Text.assemble(("██ ", _style(color, None)), text) for color, text in symbols)
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_row(text_of(compose(canvas, height, width - need)), legend)
    return table


def text_of(lines: Sequence[Line]) -> Text:
    """Lines of glyphs as text with styles."""
    parts = (Text.assemble(*((x.character, _style(x.ink, x.floor)) for x in line)) for line in lines)
    text = Text("\n").join(parts)
    text.no_wrap, text.overflow = True, "crop"
    return text


@cache
def _style(ink: Color | None, floor: Color | None) -> Style:
    return Style.from_color(*(None if color is None else RichColor.from_rgb(*color) for color in (ink, floor)))


def _glyphs(cell: Cell) -> Line:
    return [Glyph(character, cell.ink, cell.floor) for character in cell.sign]


def _pixels(canvas: Canvas, scale: float) -> list[Line]:
    """The image, two pixels per character, with the captions on top; `scale` is in pixels per cell."""
    scale = scale if canvas.freehand or scale < 1 else float(int(scale))
    width, lines = max(int(canvas.cols * scale), 1), max(round(canvas.rows * scale / 2), 1)
    pixels = canvas.pixels(2 * lines, width).tolist()
    grid = [
        [Glyph(UPPER_HALF, tuple(top), tuple(bottom)) for top, bottom in zip(upper, lower, strict=True)]
        for upper, lower in zip(pixels[::2], pixels[1::2], strict=True)
    ]
    for row, col, text, color, _ in canvas.words:
        at = int((row + 0.5) * scale / 2)
        for k, character in enumerate(text, start=int(col * scale + 0.5)):
            if row < canvas.rows and 0 <= at < lines and 0 <= k < width:
                grid[at][k] = Glyph(character, color, grid[at][k].floor)
    return grid


def _captions(canvas: Canvas, width: int) -> list[Line]:
    """The rows below the grid as lines: text and cells from left to right."""
    parts = [(round(row), col, [Glyph(c) for c in text]) for row, col, text, _, _ in canvas.words if row >= canvas.rows]
    parts += [(row, col, _glyphs(cell)) for (row, col), cell in canvas.cells.items() if row >= canvas.rows]
    lines: dict[int, Line] = {}
    for row, _, part in sorted(parts, key=lambda part: part[:2]):
        lines.setdefault(row, []).extend((*part, Glyph(" ")))
    return [line[:width] for line in lines.values()]


class Terminal:
    """The full screen of a terminal during a `with` statement, without scrolling, with single key presses."""

    def __init__(self) -> None:
        self._console, self._typed = Console(highlight=False), ""

    def __enter__(self) -> "Terminal":
        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def show(self, head: Sequence[str], canvas: Canvas, symbols: Sequence[tuple[Color, str]], *foot: str) -> None:
        """Show lines of text, the canvas with its legend, and more lines of text."""
        width, height = self._console.size
        board = with_legend(canvas, symbols, max(height - len(head) - len(foot) - 2, 1), width)
        self.lines(*head, "", board, "", *foot)

    def lines(self, *lines: RenderableType) -> None:
        """Show these lines only; text that does not fit is cut off."""
        texts = [Text(line, no_wrap=True, overflow="crop") if isinstance(line, str) else line for line in lines]
        self._console.update_screen(Group(*texts))

    @property
    def size(self) -> tuple[int, int]:
        """Lines and columns."""
        width, height = self._console.size
        return height, width

    def key(self, milliseconds: int) -> str:
        """Return the next key: a character, or up, down, left, right; "" after the timeout (none if it is negative)."""
        if not self._typed:
            wait = None if milliseconds < 0 else milliseconds / 1000
            if not select.select([sys.stdin], [], [], wait)[0]:
                return ""
            self._typed = os.read(sys.stdin.fileno(), 1 << 10).decode(errors="replace")
        match = _KEY.match(self._typed)
        assert match is not None
        self._typed = self._typed[match.end() :]
        return ARROWS[match[1]] if match[1] else match[0]
