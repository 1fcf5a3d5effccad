"""Maps of the cells observed in an episode, around the agent: the targets of `--predict map`."""

from collections.abc import Sequence

import numpy as np

from .arrays import Array

REACH = 6  # Cells of the map on each side of the agent
SIDE = 2 * REACH + 1


def around(seen: Array, agents: Array) -> Array:
    """Return the cells around each agent, uint8 [N, SIDE, SIDE, L].

    Args:
        seen: uint8 [N, rows, columns, L]: 0 for a cell not seen in this episode.
        agents: int64 [N, 2]: row and column of each agent.
    """
    count, rows, columns, _ = seen.shape
    row, column = (agents[:, axis, None] + np.arange(-REACH, REACH + 1) for axis in (0, 1))
    inside = ((row >= 0) & (row < rows))[:, :, None] & ((column >= 0) & (column < columns))[:, None, :]
    row, column = row.clip(0, rows - 1), column.clip(0, columns - 1)
    cells = seen[np.arange(count)[:, None, None], row[:, :, None], column[:, None, :]]
    return np.where(inside[..., None], cells, 0)


def mark_window(seen: Array, shown: Array, agents: Array, reach: int) -> None:
    """Copy the cells at most `reach` from each agent [N, 2] from `shown` to `seen` (both [N, rows, columns, L])."""
    count, rows, columns, _ = seen.shape
    row, column = (agents[:, axis, None] + np.arange(-reach, reach + 1) for axis in (0, 1))
    row, column = row.clip(0, rows - 1), column.clip(0, columns - 1)
    index = np.arange(count)[:, None, None], row[:, :, None], column[:, None, :]
    seen[index] = shown[index]


def layers(codes: Array, tables: Sequence[Array]) -> Array:
    """Convert cell codes [N, rows, columns] to map layers, uint8 [N, rows, columns, L], with one table per layer."""
    return np.stack([table[codes] for table in tables], -1).astype(np.uint8)
