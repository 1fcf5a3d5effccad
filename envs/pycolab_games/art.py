"""Boards drawn with characters. (pycolab's ascii_art module does not work with current NumPy.)"""

from collections.abc import Sequence

import numpy as np

from ..arrays import Array


def board(lines: Sequence[str]) -> Array:
    """Character codes uint8 [rows, cols] of lines of equal length."""
    return np.array([list(line.encode("ascii")) for line in lines], np.uint8)


def cells(codes: Array, character: str) -> Array:
    """Positions of a character: bool, of the shape of `codes`."""
    return codes == ord(character)
