"""Binary planes, one per character of a board: exactly one plane is set in every cell."""

from ..base.compiled import kernel
from .arrays import Array


@kernel
def put(planes: Array, row: int, col: int, over: int, plane: int) -> None:
    """Change a cell of `planes` [rows, cols, K] from character number `over` to number `plane`."""
    planes[row, col, over] = 0
    planes[row, col, plane] = 1


@kernel
def paint(planes: Array, row: int, col: int, height: int, width: int, over: int, plane: int) -> None:
    """Change a rectangle of cells from character number `over` to number `plane`."""
    for r in range(row, row + height):
        for c in range(col, col + width):
            put(planes, r, c, over, plane)
