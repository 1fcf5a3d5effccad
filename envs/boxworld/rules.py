"""The rules of BoxWorld for one environment, and the sampling of its levels.

Cells are integer codes. The array has an additional rim of cells around the board, so that no window extends beyond
it: board cell (r, c) is at [r + 1, c + 1].
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..randomness import draw_order, integer

NUM_COLORS = 20
NOTHING, FLOOR, GEM, PLAYER = 0, 1, 2, 3
KEY, LOCK, BAIT = 4, 4 + NUM_COLORS, 4 + 2 * NUM_COLORS
"""First codes of 20 keys, of the 20 locks on the path to the gem, and of the 20 locks of distractor branches. NOTHING
stands for the border, the cells outside it, and the absence of a carried key."""
MAX_FAILURES = 200  # Failed placements after which another level is sampled (as in the original)
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
    colors[KEY:] = np.tile(hues, (3, 1)) * 1000 / 999
    return np.round(255 * colors).astype(np.uint8)


PALETTE = _palette()


class State(NamedTuple):
    """N games; S = grid_size + 4."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    board: Array  # int8 [N, S, S]: cell codes, without the player
    row: Array  # int64 [N]: position of the player in `board`
    col: Array  # int64 [N]: position of the player in `board`
    colors: Array  # int8 [N, 20]: the level's order of colors; the path uses the first ones
    held: Array  # int8 [N]: cell code of the carried key, or NOTHING
    steps: Array  # int64 [N]: actions taken in this episode
    solved: Array  # bool [N]: the gem has been collected
    path_length: Array  # int64 [N]: locks on the path to the gem
    num_distractors: Array  # int64 [N]: distractor branches


class Params(NamedTuple):
    shortest_path: int
    longest_path: int
    fewest_distractors: int
    most_distractors: int
    branch_length: int
    max_steps: int
    full_view: bool


@kernel
def start(state: State, params: Params, i: int) -> None:
    while not try_level(state, params, i):
        pass
    state.held[i], state.steps[i], state.solved[i] = NOTHING, 0, False


@kernel
def try_level(state: State, params: Params, i: int) -> bool:
    """Sample one level and place it; return whether it fits on the board."""
    random, board, side = state.random, state.board[i], state.board.shape[1]
    length = params.shortest_path + integer(random, i, params.longest_path - params.shortest_path + 1)
    branches = params.fewest_distractors + integer(random, i, params.most_distractors - params.fewest_distractors + 1)
    colors = state.colors[i]
    draw_order(random, i, colors)
    board[:] = NOTHING
    board[2 : side - 2, 2 : side - 2] = FLOOR
    failures = place(state, i, KEY + colors[0], NOTHING, 0)
    for k in range(length):
        content = KEY + colors[k + 1] if k + 1 < length else GEM
        failures = place(state, i, content, LOCK + colors[k], failures)
    for _ in range(branches):
        lock = integer(random, i, length)
        for _ in range(params.branch_length):
            key = lock
            while key == lock:  # a key that opens nothing on the path, never of the last color (as in the original)
                key = length + integer(random, i, NUM_COLORS - 1 - length)
            failures = place(state, i, KEY + colors[key], BAIT + colors[lock], failures)
            lock = key
    while failures <= MAX_FAILURES:  # the player: rows 2..grid_size - 1, columns 1..grid_size - 1
        state.row[i], state.col[i] = 3 + integer(random, i, side - 6), 2 + integer(random, i, side - 5)
        if board[state.row[i], state.col[i]] == FLOOR:
            break
        failures += 1
    state.path_length[i], state.num_distractors[i] = length, branches
    return failures <= MAX_FAILURES


@kernel
def place(state: State, i: int, content: int, lock: int, failures: int) -> int:
    """Put a box (or a loose key, lock = NOTHING) where it touches nothing; return the failures counted so far. Content
    rows are sampled from 2..grid_size - 1 and columns from 1..grid_size - 3 (the original's bounds)."""
    board, side = state.board[i], state.board.shape[1]
    while failures <= MAX_FAILURES:
        row, col = 3 + integer(state.random, i, side - 6), 2 + integer(state.random, i, side - 7)
        if is_clear(board, row, col):
            board[row, col] = content
            if lock != NOTHING:
                board[row, col + 1] = lock
            break
        failures += 1
    return failures


@kernel
def is_clear(board: Array, row: int, col: int) -> bool:
    """Whether the box at (row, col), (row, col + 1) and all cells around it are floor."""
    for r in range(row - 1, row + 2):
        for c in range(col - 1, col + 3):
            if board[r, c] != FLOOR:
                return False
    return True


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    state.steps[i] += 1
    row, col, reward, decided = state.row[i] + _ROWS[action], state.col[i] + _COLS[action], 0.0, False
    cell = state.board[i, row, col]
    if enters(cell, state.board[i, row, col + 1], state.held[i]):
        state.row[i], state.col[i], state.board[i, row, col] = row, col, FLOOR
        if cell == GEM:
            state.solved[i], reward, decided = True, GEM_REWARD, True
        elif cell >= LOCK:
            state.held[i] = NOTHING
            reward, decided = (LOCK_REWARD, False) if cell < BAIT else (BAIT_REWARD, True)
        elif cell >= KEY:
            state.held[i] = cell  # a key carried before is lost
    return reward, decided, not decided and state.steps[i] > params.max_steps


@kernel
def enters(cell: int, right: int, held: int) -> bool:
    """Whether a player with the key `held` may step on `cell`, whose right neighbor is `right`."""
    if cell >= LOCK:
        return held != NOTHING and (cell - LOCK) % NUM_COLORS == held - KEY
    if cell >= KEY or cell == GEM:
        return right < LOCK
    return cell == FLOOR


@kernel
def observe(state: State, params: Params, i: int, image: Array) -> None:
    side, held = image.shape[0], state.held[i]
    if params.full_view:  # all cells; the carried key is in the corner (0, 0) of the border
        for r in range(side):
            for c in range(side):
                cell = state.board[i, r + 1, c + 1]
                for channel in range(3):
                    image[r, c, channel] = PALETTE[cell, channel]
        for channel in range(3):
            image[0, 0, channel] = PALETTE[held, channel]
            image[state.row[i] - 1, state.col[i] - 1, channel] = PALETTE[PLAYER, channel]
        return
    top, left = state.row[i] - WINDOW // 2, state.col[i] - WINDOW // 2
    red, green, blue = PALETTE[held, 0], PALETTE[held, 1], PALETTE[held, 2]
    for r in range(WINDOW):
        for c in range(WINDOW):
            cell = state.board[i, top + r, left + c]
            for channel in range(3):
                image[r, c, channel] = PALETTE[cell, channel]
            image[r, c, 3], image[r, c, 4], image[r, c, 5] = red, green, blue
    for channel in range(3):
        image[WINDOW // 2, WINDOW // 2, channel] = PALETTE[PLAYER, channel]
