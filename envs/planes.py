"""Binary planes, one per character of a board: exactly one plane is set in every cell.

The games first compress what they show to a few numbers (`scene`) and then write cells from those (`observe`). Numba
counts the references of every array of a game's state in functions that take the state and also loop or call, which
makes them three times slower; so no function here, and none that writes cells, takes a state.
"""

from numba import njit

from .arrays import Array


@njit(cache=True)
def put(planes: Array, row: int, col: int, over: int, plane: int) -> None:
    """Change a cell of `planes` [rows, cols, K] from character number `over` to number `plane`."""
    planes[row, col, over] = 0
    planes[row, col, plane] = 1


@njit(cache=True)
def paint(planes: Array, row: int, col: int, height: int, width: int, over: int, plane: int) -> None:
    """Change a rectangle of cells from character number `over` to number `plane`."""
    for r in range(row, row + height):
        for c in range(col, col + width):
            put(planes, r, c, over, plane)
