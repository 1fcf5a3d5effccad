"""Boards drawn with characters. (pycolab's ascii_art module does not work with current NumPy.)"""

from collections.abc import Sequence

import numpy as np

from ..arrays import Array


def board(lines: Sequence[str]) -> Array:
    """Convert lines of equal length to character codes, uint8 [rows, cols]."""
    return np.array([list(line.encode("ascii")) for line in lines], np.uint8)


def cells(codes: Array, characters: str) -> Array:
    """Return where any of the characters is: bool, in the shape of `codes`."""
    return np.isin(codes, list(characters.encode("ascii")))
