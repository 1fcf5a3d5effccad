"""The environment of the T-maze: a room, a limbo and a maze on one map, and how rows of cells become bits.

    rows 3-7      room: 3 x 3 cells; its upper row becomes the teleporter
    rows 1-7      limbo: one cell in a star of walls
    rows 12+11d.. maze of difficulty d: a corridor two cells high, an arm three cells wide down from each end

Everything below row 10 outside the mazes is speckle: each cell looks like wall with probability 0.6, and is
unreachable. The agent's window may reach one column beyond either end of the map, where it shows the opposite end. So
a row has 193 bits: bit c + 1 is column c, for c in -1..191.
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Array

ROWS, COLS = 77, 191
WORDS = 4  # Words of 64 bits for a row
SPECKLE_ROW = 10
START = (6, 94)
TELEPORTER_ROW, TELEPORTER_COL = 4, 93
LIMBO = (4, 140)
PAD_WIDTH = 3  # Columns of the teleporter, of an arm, and of the pad at its end
HALF_WIDTHS = (10, 15, 22, 35, 56, 92)  # Columns from the middle of the maze to its outer walls, for each difficulty
NARROWEST, WIDEST = PAD_WIDTH + 1, HALF_WIDTHS[-1]
ENTRY_COL = 94
"""Where a player leaves limbo; the middle of the two widest mazes of the original is one column further right."""


class Maze(NamedTuple):
    """Where one maze lies."""

    top: int  # Row of the upper outer wall
    left: int  # Column of the left outer wall
    right: int  # Column of the right outer wall

    @property
    def entry_row(self) -> int:
        """The upper row of the corridor."""
        return self.top + 1

    @property
    def pad_row(self) -> int:
        """The row of the goal pads, the last one of the arms."""
        return self.top + 6


def maze_at(difficulty: int, half_width: int | None) -> Maze:
    """The maze of a difficulty, narrowed or widened to `half_width` if given."""
    middle = ENTRY_COL if difficulty < 4 else ENTRY_COL + 1
    reach = HALF_WIDTHS[difficulty] if half_width is None else half_width
    return Maze(12 + 11 * difficulty, middle - reach, middle + reach)


def draw_map(maze: Maze) -> tuple[Array, Array]:
    """Walls and speckle region of the environment, bool [77, 191] each."""
    walls, speckle = np.zeros((2, ROWS, COLS), np.bool_)
    walls[3:8, 92:97] = True
    walls[4:7, 93:96] = False
    star = walls[1:8, 135:146]
    for distance, solid in enumerate(("#####.#####", "....###....", "..##.#.##..", "##...#...##")):
        star[3 - distance] = star[3 + distance] = [mark == "#" for mark in solid]
    top, left, right = maze
    inner_left, inner_right = left + PAD_WIDTH + 1, right - PAD_WIDTH - 1
    speckle[SPECKLE_ROW:] = True
    speckle[top : top + 8, left : right + 1] = False
    walls[top : top + 8, left : right + 1] = True
    walls[top + 1 : top + 3, left + 1 : right] = False
    for arm in (left + 1, inner_right + 1):
        walls[top + 1 : top + 7, arm : arm + PAD_WIDTH] = False
    # between the arms only the ceiling is wall, and below it speckle
    speckle[top + 4 : top + 8, inner_left + 1 : inner_right] = True
    walls[top + 4 : top + 8, inner_left + 1 : inner_right] = False
    return walls, speckle


def pack(cells: Array) -> Array:
    """Rows of bits uint64 [77, 4] of cells bool [77, 191]."""
    bits = np.zeros((ROWS, 64 * WORDS), np.bool_)
    bits[:, : COLS + 2] = np.concatenate([cells[:, -1:], cells, cells[:, :1]], axis=1)
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpack(bits: Array) -> Array:
    """Cells bool [77, 191] of rows of bits uint64 [77, 4]."""
    flat = np.ascontiguousarray(bits.astype("<u8")).view(np.uint8)
    return np.unpackbits(flat, axis=1, bitorder="little")[:, 1 : COLS + 1].astype(np.bool_)
