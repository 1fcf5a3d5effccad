"""A canvas in a terminal: first as characters with colours, then on the screen by curses."""

import curses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...envs.drawing import Canvas, Cell, Colour
from ...envs.player_help import PlayerHelp

PIXELS = 4
"""From this many pixels per cell on, the picture itself is shown; below, two characters for each cell."""
GAP = 2
"""Columns between the board and its legend."""
UPPER_HALF = "▀"
"""Shows two pixels, one above the other: ink and floor."""


class Glyph(NamedTuple):
    """One character; colours None are the terminal's own."""

    character: str
    ink: Colour | None = None
    floor: Colour | None = None


Line = list[Glyph]


def compose(canvas: Canvas, height: int, width: int) -> list[Line]:
    """The canvas in at most `height` lines of `width` characters: the grid, then its captions."""
    captions = _captions(canvas, width)
    room = max(height - len(captions) - bool(captions), 1)
    scale = min(width / canvas.cols, 2 * room / canvas.rows)
    fits = 2 * canvas.cols <= width and canvas.rows <= room
    grid = _cells(canvas) if scale < PIXELS and fits and not canvas.freehand else _pixels(canvas, scale)
    return [*grid, [], *captions] if captions else grid


def beside(canvas: Canvas, legend: Sequence[Line], height: int, width: int) -> list[Line]:
    """The canvas with a legend at its right; without it where the canvas would have to shrink below its cells."""
    need = max(map(len, legend), default=0) + GAP
    small = 2 * canvas.cols > width - need and not canvas.freehand
    if not legend or len(legend) > height or small or need > width // 2:
        return compose(canvas, height, width)
    board = compose(canvas, height, width - need)
    broad = max(map(len, board))
    rows = [*board, *[[]] * (len(legend) - len(board))]
    texts = [*legend, *[[]] * (len(rows) - len(legend))]
    return [line + [Glyph(" ")] * (broad + GAP - len(line)) + text for line, text in zip(rows, texts, strict=True)]


def legend_of(texts: PlayerHelp) -> list[Line]:
    """Symbols in their colours, then rewards."""
    symbols = [[Glyph("█", colour), Glyph("█", colour), *words(f" {text}")] for colour, text in texts.symbols]
    return [*symbols, [], words("rewards:"), *(words(f"  {text}") for text in texts.rewards)]


def words(text: str) -> Line:
    """A line of plain text."""
    return [Glyph(character) for character in text]


def _cells(canvas: Canvas) -> list[Line]:
    """Two characters for each cell."""
    blank = Cell(canvas.background)
    rows = [[canvas.cells.get((r, c), blank) for c in range(canvas.cols)] for r in range(canvas.rows)]
    return [[glyph for cell in row for glyph in _glyphs(cell)] for row in rows]


def _glyphs(cell: Cell) -> Line:
    return [Glyph(character, cell.ink, cell.floor) for character in cell.sign]


def _pixels(canvas: Canvas, scale: float) -> list[Line]:
    """The picture, two pixels in each character, with the words on top; `scale` is pixels per cell."""
    scale = scale if canvas.freehand or scale < 1 else float(int(scale))
    width, lines = max(int(canvas.cols * scale), 1), max(round(canvas.rows * scale / 2), 1)
    pixels = canvas.pixels(2 * lines, width).tolist()
    grid = [
        [_two_pixels(tuple(top), tuple(bottom)) for top, bottom in zip(upper, lower, strict=True)]
        for upper, lower in zip(pixels[::2], pixels[1::2], strict=True)
    ]
    for row, col, text, colour, _ in canvas.words:
        at = int((row + 0.5) * scale / 2)
        for k, character in enumerate(text, start=int(col * scale + 0.5)):
            if row < canvas.rows and 0 <= at < lines and 0 <= k < width:
                grid[at][k] = Glyph(character, colour, grid[at][k].floor)
    return grid


def _two_pixels(top: Colour, bottom: Colour) -> Glyph:
    return Glyph(" ", top, top) if top == bottom else Glyph(UPPER_HALF, top, bottom)


def _captions(canvas: Canvas, width: int) -> list[Line]:
    """The rows below the grid as lines: words and cells from left to right."""
    rows: dict[int, list[tuple[float, Line]]] = {}
    for row, col, text, _, _ in canvas.words:
        if row >= canvas.rows:
            rows.setdefault(round(row), []).append((col, words(text)))
    for (row, col), cell in canvas.cells.items():
        if row >= canvas.rows:
            rows.setdefault(row, []).append((col, _glyphs(cell)))
    lines: list[Line] = []
    for row in sorted(rows):
        parts = [part for _, part in sorted(rows[row], key=lambda item: item[0])]
        lines.append([glyph for part in parts for glyph in (*part, Glyph(" "))][:width])
    return lines


class Screen:
    """The terminal, under curses.

    Args:
        window: what `curses.wrapper` hands over.
    """

    def __init__(self, window: Any) -> None:
        self._window = window
        self._palette = Palette()
        curses.curs_set(0)

    def show(self, head: Sequence[str], canvas: Canvas, foot: Sequence[str], legend: Sequence[Line] = ()) -> None:
        """Lines of text, the canvas with the legend at its right, and more lines of text."""
        height, width = self._window.getmaxyx()
        room = max(height - len(head) - len(foot), 1)
        middle = beside(canvas, legend, room, width - 1)
        spare = room - len(middle)
        above, below = [[]] * (spare > 0), [[]] * (spare > 1)
        self.lines([*map(words, head), *above, *middle, *below, *map(words, foot)])

    def lines(self, lines: Sequence[Line]) -> None:
        """These lines and nothing else; what does not fit is cut off."""
        height, width = self._window.getmaxyx()
        self._window.erase()
        for row, line in enumerate(lines[:height]):
            for col, glyph in enumerate(line[: width - 1]):
                self._window.addstr(row, col, glyph.character, self._palette.attribute(glyph.ink, glyph.floor))
        self._window.refresh()

    def size(self) -> tuple[int, int]:
        """Lines and columns."""
        height, width = self._window.getmaxyx()
        return int(height), int(width)

    def key(self, milliseconds: int) -> int:
        """The next key, or -1 if none comes in time; negative `milliseconds` waits for ever."""
        self._window.timeout(milliseconds)
        return int(self._window.getch())


class Palette:
    """Colours of a terminal: exact where it lets us define them, else the nearest it has."""

    FIRST = 16
    """The first 16 colours are the user's own and stay as they are."""
    STEP = 17
    """Channels are rounded to 16 levels, so that blended pixels share colours."""

    def __init__(self) -> None:
        curses.start_color()
        curses.use_default_colors()
        self._exact = curses.can_change_color() and curses.COLORS >= 256
        self._numbers: dict[Colour, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}

    def attribute(self, ink: Colour | None, floor: Colour | None) -> int:
        """Number of this pair of colours in curses."""
        if ink is None and floor is None:
            return 0
        pair = (self._number(ink), self._number(floor))
        if pair not in self._pairs:
            if len(self._pairs) + 1 >= min(curses.COLOR_PAIRS, 1 << 15):
                self._pairs.clear()  # the whole screen is drawn anew each time
            self._pairs[pair] = len(self._pairs) + 1
            curses.init_pair(self._pairs[pair], *pair)
        return curses.color_pair(self._pairs[pair])

    def _number(self, colour: Colour | None) -> int:
        if colour is None:
            return -1
        rounded: Any = tuple(min(round(channel / self.STEP) * self.STEP, 255) for channel in colour)
        if rounded not in self._numbers:
            self._numbers[rounded] = self._define(rounded) if self._exact else nearest(colour, curses.COLORS)
        return self._numbers[rounded]

    def _define(self, colour: Colour) -> int:
        number = self.FIRST + len(self._numbers)
        if number >= curses.COLORS:
            known = list(self._numbers)
            return self._numbers[min(known, key=lambda other: _distance(colour, other))]
        curses.init_color(number, *(round(channel * 1000 / 255) for channel in colour))
        return number


def nearest(colour: Colour, num_colours: int) -> int:
    """The number of the nearest colour of a terminal with 256 colours (xterm's cube and greys) or 8."""
    if num_colours < 256:
        return sum((channel > 127) << bit for bit, channel in enumerate(colour))
    levels = (0, 95, 135, 175, 215, 255)
    steps = [int(np.argmin([abs(level - channel) for level in levels])) for channel in colour]
    cube = (levels[steps[0]], levels[steps[1]], levels[steps[2]])
    grey = min(max(round((sum(colour) / 3 - 8) / 10), 0), 23)
    shade = 8 + 10 * grey
    if _distance(colour, (shade, shade, shade)) < _distance(colour, cube):
        return 232 + grey
    return 16 + 36 * steps[0] + 6 * steps[1] + steps[2]


def _distance(one: Colour, other: Colour) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
