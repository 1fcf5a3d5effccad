"""Boards drawn with characters. (pycolab's ascii_art module does not work with current NumPy.)"""

from collections.abc import Sequence

import numpy as np

from ..arrays import Array


def board(lines: Sequence[str]) -> Array:
    """Convert lines of equal length to character codes, uint8 [rows, cols]."""
    return np.array([list(line.encode("ascii")) for line in lines], np.uint8)


def cells(codes: Array, character: str) -> Array:
    """Return where a character is: bool, in the shape of `codes`."""
    return codes == ord(character)


def position(codes: Array, character: str) -> tuple[int, int]:
    """Return (row, col) of the only cell with a character."""
    ((row, col),) = np.argwhere(cells(codes, character)).tolist()
    return row, col
