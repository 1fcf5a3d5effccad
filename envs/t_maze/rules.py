"""The map and the rules of the T-maze for one environment.

The player walks on a single map and is teleported between its parts:

    rows 3-7      room: 3 x 3 cells; its upper row becomes the teleporter
    rows 1-7      limbo: one cell in a star of walls
    rows 12+11d.. maze of difficulty d: a corridor two cells high; from each end, an arm three cells wide leads down

Everything below row 10 outside the mazes is unreachable speckle. The agent's window may extend one column beyond either
end of the map, where it shows the opposite end. So a row has 193 bits: bit c + 1 is column c, for c in -1..191.

With n = limbo_time and f the frame at which the player steps on the teleporter (or stands there when it appears):

    frame f                     still in the room, with the cue
    frames f+1 .. f+n-1         limbo (n = 0: none)
    frames from f+max(1, n)     maze; moves are ignored in its first two frames

`arrival` is f + max(1, n), or NEVER before the teleporter is taken, so all of this follows from frame and arrival.
"""

from typing import Any, NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..parts import NEVER, put
from ..randomness import integer, next_bits

ROWS, COLS = 77, 191
WORDS = 4  # 64-bit words per row
SPECKLE_ROW = 10
START = (6, 94)
TELEPORTER_ROW, TELEPORTER_COL = 4, 93
LIMBO = (4, 140)
PAD_WIDTH = 3  # Columns of the teleporter, of an arm, and of the pad at its end
HALF_WIDTHS = (10, 15, 22, 35, 56, 92)  # Columns from the middle of the maze to its outer walls, for each difficulty
ENTRY_COL = 94  # Where a player leaves limbo; the middle of the two widest mazes is one column further right


class Maze(NamedTuple):
    """Row of the upper outer wall of one maze, and columns of its left and right ones."""

    top: int
    left: int
    right: int


def maze_at(difficulty: int, half_width: int | None) -> Maze:
    """Return the maze of a difficulty, with `half_width` instead of the difficulty's width unless it is None."""
    middle = ENTRY_COL if difficulty < 4 else ENTRY_COL + 1
    reach = HALF_WIDTHS[difficulty] if half_width is None else half_width
    return Maze(12 + 11 * difficulty, middle - reach, middle + reach)


def draw_map(maze: Maze) -> tuple[Array, Array]:
    """Draw the walls and the speckle region of the map, bool [77, 191] each."""
    walls, speckle = np.zeros((2, ROWS, COLS), np.bool_)
    walls[3:8, 92:97] = True
    walls[4:7, 93:96] = False
    star = walls[1:8, 135:146]
    for distance, solid in enumerate(("#####.#####", "....###....", "..##.#.##..", "##...#...##")):
        star[3 - distance] = star[3 + distance] = [mark == "#" for mark in solid]
    top, left, right = maze
    inner_left, inner_right = left + PAD_WIDTH + 1, right - PAD_WIDTH - 1
    speckle[SPECKLE_ROW:] = True
    speckle[top : top + 8, left : right + 1] = False
    walls[top : top + 8, left : right + 1] = True
    walls[top + 1 : top + 3, left + 1 : right] = False
    for arm in (left + 1, inner_right + 1):
        walls[top + 1 : top + 7, arm : arm + PAD_WIDTH] = False
    # between the arms, only the ceiling is wall; below it is speckle
    speckle[top + 4 : top + 8, inner_left + 1 : inner_right] = True
    walls[top + 4 : top + 8, inner_left + 1 : inner_right] = False
    return walls, speckle


def pack(cells: Array) -> Array:
    """Convert cells bool [77, 191] to rows of bits uint64 [77, 4]."""
    bits = np.zeros((ROWS, 64 * WORDS), np.bool_)
    bits[:, : COLS + 2] = np.concatenate([cells[:, -1:], cells, cells[:, :1]], axis=1)
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpack(bits: Array) -> Array:
    """Convert rows of bits uint64 [77, 4] to cells bool [77, 191]."""
    flat = np.ascontiguousarray(bits.astype("<u8")).view(np.uint8)
    return np.unpackbits(flat, axis=1, bitorder="little")[:, 1 : COLS + 1].astype(np.bool_)


VIEW_ROWS, VIEW_COLS = 7, 11
AHEAD, ASIDE = VIEW_ROWS // 2, VIEW_COLS // 2
CHARACTERS = " #PQ~"
"""Nothing, wall or speckle, player, cue, teleporter or goal pad: the planes of an observation, in this order."""
NOTHING, WALL, PLAYER, CUE, PAD = range(len(CHARACTERS))
ONE_HOT = np.eye(len(CHARACTERS), dtype=np.uint8)
ACTION_NAMES = ("up", "down", "left", "right", "stay")
_DOWN, _RIGHT = np.array([-1, 1, 0, 0, 0]), np.array([0, 0, -1, 1, 0])
CUE_ROW, CUE_ROWS, CUE_COLS = 4, 3, 2
SPECKLE_SHARE = 1229  # Of 2048: each cell of the speckle region looks like wall with probability 0.6001
STEP_REWARD, PAD_REWARD = -0.001, 1.0


class State(NamedTuple):
    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    frame: Array  # int64 [N]: 0 at the first observation
    goal: Array  # int64 [N]: the arm that the cue indicates, 0 left or 1 right
    board: Array  # uint64 [N, 77, 4]: bits of the cells that look like wall
    row: Array  # int64 [N]: position of the player on the map
    col: Array  # int64 [N]: position of the player on the map
    left: Array  # int64 [N]: first column of the window
    leftmost: Array  # int64 [N]: the window stays within columns leftmost .. leftmost + 190
    arrival: Array  # int64 [N]: frame at which the maze becomes visible
    deadline: Array  # int64 [N]: frame at which the episode, or the trial of an endless one, ends
    finished: Array  # bool [N]: a goal pad was reached in time
    solved: Array  # bool [N]: the pad reached in time (in an endless episode, the latest one) is correct
    begun: Array  # int64 [N]: frame at which the trial began; 0 unless the episode is endless.
    decisions: Array  # int64 [N]: pads reached in an endless episode
    correct: Array  # int64 [N]: correct pads among them


class Rules(NamedTuple):
    limbo_time: int
    journey_time: int  # Frames from the teleporter to the maze: max(1, limbo_time)
    teleport_delay: int
    timeout_frames: int  # NEVER for none
    cue_after_teleport: bool
    entry_row: int
    pad_row: int
    left_pad: int  # First column of the left goal pad
    right_pad: int  # First column of the right goal pad
    endless: bool = False


class Params(NamedTuple):
    """Constants, and the map that all environments share."""

    rules: Rules
    walls: Array  # uint64 [77, 4]: bits of the walls
    speckle: Array  # uint64 [77, 4]: bits of the cells that may be speckle


@kernel
def start(state: State, params: Params, i: int) -> None:
    draw_level(state, params, i)
    begin(state, params.rules, i)


@kernel
def draw_level(state: State, params: Params, i: int) -> None:
    state.goal[i] = integer(state.random, i, 2)
    draw_board(state.random, i, params.walls, params.speckle, state.board[i])


@kernel
def draw_board(random: Array, i: int, walls: Array, speckle: Array, board: Array) -> None:
    """Fill `board` uint64 [77, 4] with the walls and newly sampled speckle."""
    for r in range(SPECKLE_ROW):
        for w in range(WORDS):
            board[r, w] = walls[r, w]
    for r in range(SPECKLE_ROW, ROWS):
        first, second, third = sample_speckle(random, i), sample_speckle(random, i), sample_speckle(random, i)
        first = (first & ~np.uint64(1)) | (third >> np.uint64(63))  # column -1 shows column 190
        last = (first >> np.uint64(1)) & np.uint64(1)  # column 191 shows column 0
        board[r, 0] = walls[r, 0] | (first & speckle[r, 0])
        board[r, 1] = walls[r, 1] | (second & speckle[r, 1])
        board[r, 2] = walls[r, 2] | (third & speckle[r, 2])
        board[r, 3] = walls[r, 3] | (last & speckle[r, 3])


@kernel
def sample_speckle(random: Array, i: int) -> Any:
    """Sample 64 bits, each set with probability SPECKLE_SHARE / 2048: from a bit set with probability p, OR (AND) with
    a random bit makes (1 + p) / 2 (p / 2), a binary digit 1 (0) of the share, lowest digit first."""
    bits = np.uint64(0)
    for digit in range(11):
        sampled = next_bits(random, i)
        bits = bits | sampled if SPECKLE_SHARE >> digit & 1 else bits & sampled
    return bits


@kernel
def begin(state: State, rules: Rules, i: int) -> None:
    state.finished[i], state.solved[i] = False, False
    state.decisions[i], state.correct[i] = 0, 0
    begin_trial(state, rules, i, 0)


@kernel
def begin_trial(state: State, rules: Rules, i: int, frame: int) -> None:
    """Put the player in the room at `frame`, the first frame of a trial."""
    state.frame[i], state.begun[i], state.row[i], state.col[i] = frame, frame, START[0], START[1]
    state.left[i], state.leftmost[i] = START[1] - ASIDE, 0
    state.arrival[i], state.deadline[i] = NEVER, rules.timeout_frames


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    rules = params.rules
    frame, row, col, left = state.frame[i] + 1, state.row[i], state.col[i], state.left[i]
    arrival, deadline, leftmost = state.arrival[i], state.deadline[i], state.leftmost[i]
    walked = walk(params.walls, row, col, left, leftmost, action)
    if rules.endless and deadline <= frame < rules.timeout_frames:
        draw_level(state, params, i)
        begin_trial(state, rules, i, frame)
        return STEP_REWARD, False, False
    over = frame >= deadline
    reward = STEP_REWARD if frame > 1 and not over else 0.0
    if row == rules.pad_row and not over:  # rewarded one frame after the player reached it, if time remains
        right = (col >= rules.right_pad) == (state.goal[i] == 1)
        reward += PAD_REWARD if right else -PAD_REWARD
        deadline, state.finished[i], state.solved[i] = frame + 1, True, right
        if rules.endless:
            state.decisions[i] += 1
            state.correct[i] += right
    if arrival == NEVER:
        row, col, left = walked
        if row == TELEPORTER_ROW and frame - state.begun[i] >= rules.teleport_delay - 1:
            # With limbo, the way to the maze leads from any column of the room to ENTRY_COL. The original moves the
            # map under the window, not the window, by that difference; hence `leftmost`.
            arrival = frame + rules.journey_time
            leftmost = ENTRY_COL - col if rules.limbo_time > 0 else 0
    elif frame > arrival + 1:
        row, col, left = walked
    elif frame == arrival:
        row = rules.entry_row
        if rules.limbo_time > 0:
            col, left = ENTRY_COL, ENTRY_COL - ASIDE
    elif frame < arrival:
        row, col, left = LIMBO[0], LIMBO[1], LIMBO[1] - ASIDE
    state.row[i], state.col[i], state.left[i] = row, col, left
    state.arrival[i], state.deadline[i], state.leftmost[i] = arrival, deadline, leftmost
    state.frame[i] = frame
    return reward, over, False


@kernel
def walk(walls: Array, row: int, col: int, left: int, leftmost: int, action: int) -> tuple[int, int, int]:
    """Return (row, col, left) after a step, unless a wall blocks it; the window follows while it stays on the map."""
    to_row, to_col, to_left = row + _DOWN[action], col + _RIGHT[action], left + _RIGHT[action]
    bit = np.uint64(to_col + 1)
    if walls[to_row, bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1):
        return row, col, left
    return to_row, to_col, to_left if leftmost <= to_left <= leftmost + COLS - VIEW_COLS else left


@kernel
def observe(state: State, params: Params, i: int, planes: Array) -> None:
    rules, board = params.rules, state.board[i]
    top, left = state.row[i] - AHEAD, state.left[i]
    in_room = state.frame[i] <= state.arrival[i] - rules.journey_time
    word, shift = np.uint64(left + 1) >> np.uint64(6), np.uint64(left + 1) & np.uint64(63)
    for r in range(VIEW_ROWS):
        # the eleven bits may begin in one word and end in the next; a shift by 64 would be undefined
        bits = board[top + r, word] >> shift
        bits |= board[top + r, word + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shift)
        for c in range(VIEW_COLS):
            wall = np.intp(bits >> np.uint64(c) & np.uint64(1))
            for plane in range(5):
                planes[r, c, plane] = ONE_HOT[wall, plane]
    if in_room and state.frame[i] - state.begun[i] >= rules.teleport_delay - 1:
        observe_pad(planes, TELEPORTER_ROW - top, TELEPORTER_COL - left)
    observe_pad(planes, rules.pad_row - top, rules.left_pad - left)
    observe_pad(planes, rules.pad_row - top, rules.right_pad - left)
    if in_room or rules.cue_after_teleport:  # left or right of the map
        for r in range(CUE_ROW, CUE_ROW + CUE_ROWS):
            for c in range(9 * state.goal[i], 9 * state.goal[i] + CUE_COLS):
                for plane in range(5):
                    planes[r, c, plane] = ONE_HOT[CUE, plane]
    for plane in range(5):
        planes[AHEAD, state.col[i] - left, plane] = ONE_HOT[PLAYER, plane]


@kernel
def observe_pad(planes: Array, row: int, col: int) -> None:
    """Write the three cells of a pad from (row, col) on, as far as they are inside the window."""
    if 0 <= row < VIEW_ROWS:
        for c in range(max(col, 0), min(col + PAD_WIDTH, VIEW_COLS)):
            put(planes, row, c, NOTHING, PAD)
