"""The rules of BoxWorld for one environment."""

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from .levels import BAIT, FLOOR, GEM, KEY, LOCK, NOTHING, NUM_COLORS, PLAYER, Params, State, new_level

WINDOW = 5
GEM_REWARD, LOCK_REWARD, BAIT_REWARD = 10.0, 1.0, -1.0
ACTION_NAMES = ("up", "down", "left", "right")
_ROWS, _COLS = np.array([-1, 1, 0, 0]), np.array([0, 0, -1, 1])


def _palette() -> Array:
    """Color of every cell code, uint8 [64, 3]: key i, lock i and bait i share one of 20 hues."""
    third, rise = 6.0, np.arange(NUM_COLORS) * 6.0 / NUM_COLORS
    # HSV with saturation 1/2 and value 0.7: every channel is a trapezoid over the hue circle, between 0.35 and 0.7
    channels = [np.clip(np.abs((rise - shift) % third - 3.0) - 1.0, 0.0, 1.0) for shift in (0.0, 2.0, 4.0)]
    hues = 0.35 + 0.35 * np.stack(channels, axis=1)
    colors = np.zeros((BAIT + NUM_COLORS, 3))
    colors[FLOOR], colors[GEM], colors[PLAYER] = 800 / 999, 1.0, 500 / 999
    for first in (KEY, LOCK, BAIT):
        colors[first : first + NUM_COLORS] = hues * 1000 / 999
    return np.round(255 * colors).astype(np.uint8)


PALETTE = _palette()


@kernel
def enters(cell: int, right: int, held: int) -> bool:
    """Whether a player with the key `held` may step on `cell`, whose right neighbor is `right`."""
    if cell >= LOCK:
        return held != NOTHING and (cell - LOCK) % NUM_COLORS == held - KEY
    if cell >= KEY or cell == GEM:
        return right < LOCK
    return cell == FLOOR


@kernel
def move(state: State, i: int, action: int) -> tuple[float, bool]:
    """Move the player of environment i and process its new cell; return (reward, whether the game has ended)."""
    row, col = state.row[i] + _ROWS[action], state.col[i] + _COLS[action]
    cell = state.board[i, row, col]
    if not enters(cell, state.board[i, row, col + 1], state.held[i]):
        return 0.0, False
    state.row[i], state.col[i] = row, col
    if cell == FLOOR:
        return 0.0, False
    state.board[i, row, col] = FLOOR
    if cell == GEM:
        state.solved[i] = True
        return GEM_REWARD, True
    if cell < LOCK:
        state.held[i] = cell  # a key carried before is lost
        return 0.0, False
    state.held[i] = NOTHING
    return (LOCK_REWARD, False) if cell < BAIT else (BAIT_REWARD, True)


@kernel
def start(state: State, params: Params, i: int) -> None:
    new_level(state, params, i)
    state.held[i], state.steps[i], state.solved[i] = NOTHING, 0, False


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    reward, decided = move(state, i, action)
    state.steps[i] += 1
    return reward, decided, not decided and state.steps[i] > params.max_steps


@kernel
def observe(state: State, params: Params, i: int, image: Array) -> None:
    """Write the observation of environment i: [5, 5, 6], or the full board [grid_size + 2, grid_size + 2, 3]."""
    if params.full_view:
        observe_board(state, i, image)
    else:
        observe_window(state, i, image)


@kernel
def observe_window(state: State, i: int, image: Array) -> None:
    """RGB of the cells around the player, then RGB of the carried key in every pixel (black: none)."""
    top, left = state.row[i] - WINDOW // 2, state.col[i] - WINDOW // 2
    held = state.held[i]
    red, green, blue = PALETTE[held, 0], PALETTE[held, 1], PALETTE[held, 2]
    for r in range(WINDOW):
        for c in range(WINDOW):
            cell = state.board[i, top + r, left + c]
            image[r, c, 0] = PALETTE[cell, 0]
            image[r, c, 1] = PALETTE[cell, 1]
            image[r, c, 2] = PALETTE[cell, 2]
            image[r, c, 3] = red
            image[r, c, 4] = green
            image[r, c, 5] = blue
    for channel in range(3):
        image[WINDOW // 2, WINDOW // 2, channel] = PALETTE[PLAYER, channel]


@kernel
def observe_board(state: State, i: int, image: Array) -> None:
    """RGB of all cells; the carried key is in the corner (0, 0) of the border."""
    side = image.shape[0]
    for r in range(side):
        for c in range(side):
            cell = state.board[i, r + 1, c + 1]
            image[r, c, 0] = PALETTE[cell, 0]
            image[r, c, 1] = PALETTE[cell, 1]
            image[r, c, 2] = PALETTE[cell, 2]
    for channel in range(3):
        image[0, 0, channel] = PALETTE[state.held[i], channel]
        image[state.row[i] - 1, state.col[i] - 1, channel] = PALETTE[PLAYER, channel]
