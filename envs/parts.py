"""Parts of the rules of several environments: timeouts in frames, and observations of binary planes, one for each
character of a board, of which exactly one is set in every cell."""

from ..base.compiled import kernel
from ..base.errors import check_integer
from .arrays import Array

NEVER = 2**62  # A frame that is never reached


def last_frame(timeout_frames: int) -> int:
    """Return the last frame of an episode: NEVER for -1. Raises ValueError for any other value below 1."""
    check_integer("timeout_frames", timeout_frames, -1, None)
    if timeout_frames == 0:
        raise ValueError("timeout_frames is 0; allowed: -1 (no timeout), or at least 1")
    return timeout_frames if timeout_frames > 0 else NEVER


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
