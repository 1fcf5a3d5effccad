"""State and parameters of BoxWorld, and the sampling of its levels.

A level is a chain: a loose key opens the first box, each box contains the key of the next one, and the last box
contains the gem. Distractor branches start from keys of the chain and are dead ends. A box has two cells: its
content, and its lock to the right.

Cells are integer codes. The array has an additional rim of cells around the board, so that no window extends beyond
it: board cell (r, c) is at [r + 1, c + 1].
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..randomness import integer

NUM_COLORS = 20
NOTHING, FLOOR, GEM, PLAYER = 0, 1, 2, 3
KEY, LOCK, BAIT = 4, 4 + NUM_COLORS, 4 + 2 * NUM_COLORS
"""First codes of 20 keys, of the 20 locks on the path to the gem, and of the 20 locks of distractor branches.

NOTHING stands for the border, the cells outside it, and the absence of a carried key; all are black.
"""
MAX_FAILURES = 200
"""Failed placements after which another level is sampled (as in the original)."""


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
    """The constructor's arguments, in the form that compiled functions use."""

    shortest_path: int
    longest_path: int
    fewest_distractors: int
    most_distractors: int
    branch_length: int
    max_steps: int
    full_view: bool


def new_state(num_envs: int, grid_size: int) -> State:
    return zeroed(
        State, num_envs, board=(np.int8, grid_size + 4, grid_size + 4), colors=(np.int8, NUM_COLORS), held=np.int8
    )


def check_fits(path_length: int, num_distractors: int, branch_length: int, grid_size: int) -> None:
    """Raise ValueError if the largest level that may be sampled lacks colors or room. The limit on room was measured:
    within it, at least one in 200 sampled levels fits."""
    if num_distractors and NUM_COLORS - 1 - path_length < min(branch_length, 2):
        most = NUM_COLORS - 1 - min(branch_length, 2)
        raise ValueError(f"path_lengths up to {path_length} leave no colors for distractors; allowed: up to {most}")
    objects = 1 + path_length + num_distractors * branch_length
    packed = ((grid_size - 1) // 2) * ((grid_size - 2) // 3)  # rows of boxes times boxes in a row
    most = min(max(2, packed * 7 // 8), 30)
    if objects > most:
        raise ValueError(
            f"path_lengths up to {path_length} and num_distractors up to {num_distractors} with branch_length "
            f"{branch_length} make {objects} objects to place; allowed: at most {most} with grid_size {grid_size}"
        )


@kernel
def new_level(state: State, params: Params, i: int) -> None:
    """Sample levels until one fits on the board of environment i."""
    while not try_level(state, params, i):
        pass


@kernel
def try_level(state: State, params: Params, i: int) -> bool:
    """Sample one level and place it; return whether it fits on the board."""
    random = state.random
    length = params.shortest_path + integer(random, i, params.longest_path - params.shortest_path + 1)
    branches = params.fewest_distractors + integer(random, i, params.most_distractors - params.fewest_distractors + 1)
    colors = state.colors[i]
    shuffle(random, i, colors)
    clear_board(state.board[i])
    failures = place(state, i, KEY + colors[0], NOTHING, 0)
    for k in range(length):
        content = KEY + colors[k + 1] if k + 1 < length else GEM
        failures = place(state, i, content, LOCK + colors[k], failures)
    for _ in range(branches):
        lock = integer(random, i, length)
        for _ in range(params.branch_length):
            key = draw_bait_key(random, i, length, lock)
            failures = place(state, i, KEY + colors[key], BAIT + colors[lock], failures)
            lock = key
    failures = place_player(state, i, failures)
    state.path_length[i], state.num_distractors[i] = length, branches
    return failures <= MAX_FAILURES


@kernel
def shuffle(random: Array, i: int, colors: Array) -> None:
    """Write a random order of the colors into `colors` (Fisher and Yates)."""
    for k in range(NUM_COLORS):
        colors[k] = k
    for last in range(NUM_COLORS - 1, 0, -1):
        other = integer(random, i, last + 1)
        colors[last], colors[other] = colors[other], colors[last]


@kernel
def clear_board(board: Array) -> None:
    """Write an empty room inside its border."""
    side = board.shape[0]
    board[:] = NOTHING
    board[2 : side - 2, 2 : side - 2] = FLOOR


@kernel
def draw_bait_key(random: Array, i: int, length: int, lock: int) -> int:
    """Sample a key that opens nothing on the path to the gem, never of the last color (as in the original)."""
    key = lock
    while key == lock:
        key = length + integer(random, i, NUM_COLORS - 1 - length)
    return key


@kernel
def place(state: State, i: int, content: int, lock: int, failures: int) -> int:
    """Put a box (or a loose key, lock = NOTHING) where it touches nothing; return the failures counted so far. Content
    rows are sampled from 2..grid_size - 1 and columns from 1..grid_size - 3 (the original's bounds)."""
    board, room = state.board[i], state.board.shape[1] - 4
    while failures <= MAX_FAILURES:
        row, col = 3 + integer(state.random, i, room - 2), 2 + integer(state.random, i, room - 3)
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
def place_player(state: State, i: int, failures: int) -> int:
    """Put the player on floor, rows 2..grid_size - 1, columns 1..grid_size - 1; return the failures counted so far."""
    room = state.board.shape[1] - 4
    while failures <= MAX_FAILURES:
        row, col = 3 + integer(state.random, i, room - 2), 2 + integer(state.random, i, room - 1)
        if state.board[i, row, col] == FLOOR:
            state.row[i], state.col[i] = row, col
            break
        failures += 1
    return failures
