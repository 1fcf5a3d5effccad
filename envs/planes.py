"""Binary planes, one for each character of a board: in every cell, exactly one plane is set."""

from ..base.compiled import kernel
from .arrays import Array


@kernel
def put(planes: Array, row: int, col: int, over: int, plane: int) -> None:
    """Change a cell of `planes` [rows, cols, K] from plane `over` to plane `plane`."""
    planes[row, col, over] = 0
    planes[row, col, plane] = 1


@kernel
def paint(planes: Array, row: int, col: int, height: int, width: int, over: int, plane: int) -> None:
    """Change a rectangle of cells from plane `over` to plane `plane`."""
    for r in range(row, row + height):
        for c in range(col, col + width):
            put(planes, r, c, over, plane)
