"""Maps of the cells observed in an episode, around the agent: the targets of `--predict map`."""

import numpy as np

from .arrays import Array

REACH = 6  # Cells of the map on each side of the agent
SIDE = 2 * REACH + 1


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
