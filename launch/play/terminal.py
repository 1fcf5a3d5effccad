"""A canvas in a terminal: colored characters by rich, and single key presses."""

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache

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

Line = list[tuple[str, Style]]  # Characters with their colors


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
        return _text(compose(canvas, height, width))
    table = Table.grid(padding=(0, GAP, 0, 0))
    legend = Text("\n").join(Text.assemble(("██ ", style(color)), text) for color, text in symbols)
    table.add_row(_text(compose(canvas, height, width - need)), legend)
    return table


@cache
def style(ink: Color | None = None, floor: Color | None = None) -> Style:
    """Colors of a character and of the space behind it; None is the terminal's default."""
    return Style.from_color(*(color and RichColor.from_rgb(*color) for color in (ink, floor)))


def _text(lines: Sequence[Line]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop").join(Text.assemble(*line) for line in lines)


def _glyphs(cell: Cell) -> Line:
    return [(character, style(cell.ink, cell.floor)) for character in cell.sign]


def _pixels(canvas: Canvas, scale: float) -> list[Line]:
    """The image, two pixels per character, with the captions on top; `scale` is in pixels per cell."""
    scale = scale if canvas.freehand or scale < 1 else float(int(scale))
    width, lines = max(int(canvas.cols * scale), 1), max(round(canvas.rows * scale / 2), 1)
    ink = canvas.pixels(2 * lines, width).tolist()
    characters = {
        (int((row + 0.5) * scale / 2), k): (character, color)
        for row, col, text, color, _ in canvas.words
        for k, character in enumerate(text, start=int(col * scale + 0.5))
        if row < canvas.rows
    }
    return [
        [
            (character, style(color, tuple(lower)))
            for column, (upper, lower) in enumerate(zip(ink[2 * line], ink[2 * line + 1], strict=True))
            for character, color in [characters.get((line, column), (UPPER_HALF, tuple(upper)))]
        ]
        for line in range(lines)
    ]


def _captions(canvas: Canvas, width: int) -> list[Line]:
    """The rows below the grid as lines: text and cells from left to right."""
    parts = [
        (round(row), col, [(c, style()) for c in text]) for row, col, text, *_ in canvas.words if row >= canvas.rows
    ]
    parts += [(row, col, _glyphs(cell)) for (row, col), cell in canvas.cells.items() if row >= canvas.rows]
    lines: dict[int, Line] = {}
    for row, _, part in sorted(parts, key=lambda part: part[:2]):
        lines.setdefault(row, []).extend((*part, (" ", style())))
    return [line[:width] for line in lines.values()]


class Terminal:
    """The full screen of a terminal, without scrolling, with single key presses."""

    def __init__(self) -> None:
        self.console, self._typed = Console(highlight=False), ""

    @contextmanager
    def opened(self) -> Generator[None]:
        """Use the screen and the keys during the body."""
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        try:
            with self.console.screen():
                yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def show(self, *lines: RenderableType) -> None:
        """Show these lines only; text that does not fit is cut off."""
        texts = [Text(line, no_wrap=True, overflow="crop") if isinstance(line, str) else line for line in lines]
        self.console.update_screen(Group(*texts))

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
