"""Parts of environments: timeouts in frames, observations of binary planes, one for each character of a board, of which
exactly one is set in every cell, and maps of the observed cells, for `--predict map`."""

import numpy as np

from ..base.compiled import kernel
from ..base.errors import check_integer
from .arrays import Array

NEVER = 2**62  # A frame that is never reached
REACH = 6  # Cells of a map on each side of the agent
SIDE = 2 * REACH + 1


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


def around(seen: Array, agents: Array) -> Array:
    """Return the cells of `seen`, uint8 [N, rows, columns, L], around each agent [N, 2]: uint8 [N, SIDE, SIDE, L]."""
    padded = np.pad(seen, ((0, 0), (REACH, REACH), (REACH, REACH), (0, 0)))
    return padded[_window(padded, agents + REACH, REACH)]


def mark_window(seen: Array, shown: Array, agents: Array, reach: int) -> None:
    """Copy the cells at most `reach` from each agent [N, 2] from `shown` to `seen` (both [N, rows, columns, L])."""
    index = _window(shown, agents, reach)
    seen[index] = shown[index]


def _window(cells: Array, agents: Array, reach: int) -> tuple[Array, Array, Array]:
    """Indices of the cells at most `reach` from each agent [N, 2], inside `cells` [N, rows, columns, L]."""
    steps = np.arange(-reach, reach + 1)
    row, column = (np.clip(agents[:, axis, None] + steps, 0, cells.shape[1 + axis] - 1) for axis in (0, 1))
    return np.arange(len(agents))[:, None, None], row[:, :, None], column[:, None, :]
