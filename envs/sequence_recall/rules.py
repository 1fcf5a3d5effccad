"""The rules of Sequence Recall for one environment.

Until the pen opens, the lights are a function of the frame number: for each element of the sequence all lights are off
for `off_frames`, then one is on. From frame `free_frame` on there are two cases. If no light is on, the first light
that the player enters turns on and is compared with the next element of the sequence. If a light is on, it turns off
when the player is on the floor again; the next light counts one frame later at the earliest.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..planes import paint
from ..randomness import integer

ROWS, COLS = 17, 21
CHARACTERS = " #1234MP"
"""Nothing, wall or pen, the lit lights left, top, right, bottom, an unlit light, player: the planes, in this order."""
NOTHING, WALL, LIGHT, UNLIT, PLAYER = 0, 1, 2, 6, 7  # Planes; LIGHT is that of the left light, the other three follow.
NUM_LIGHTS = 4
ACTION_NAMES = ("up", "down", "left", "right", "stay")
_DOWN, _RIGHT = np.array([-1, 1, 0, 0, 0]), np.array([0, 0, -1, 1, 0])
START = (8, 10)
SLOTS = COLS - 2  # Cells of the upper wall on which the twin shows the sequence
STEP_REWARD, RIGHT_LIGHT_REWARD = -0.005, 1.0


def _light_map() -> Array:
    """The light of each cell, int64 [17, 21]: 0 none, 1 left, 2 top, 3 right, 4 bottom."""
    lights = np.zeros((ROWS, COLS), np.int64)
    for light, (row, col) in enumerate(((8, 4), (3, 10), (8, 16), (13, 10)), start=1):
        lights[row - 1 : row + 2, col - 3 : col + 4] = light
        lights[row - 2 : row + 3, col - 1 : col + 2] = light
    return lights


def _boards() -> Array:
    """Planes without the player, uint8 [2, 5, 17, 21, 8]: with and without the pen, with no light or one light on."""
    codes = np.zeros((2, NUM_LIGHTS + 1, ROWS, COLS), np.int64)
    codes[:, :, [0, -1]] = codes[:, :, :, [0, -1]] = WALL
    codes[0, :, START[0] - 1 : START[0] + 2, START[1] - 1 : START[1] + 2] = WALL
    for light in range(1, NUM_LIGHTS + 1):
        codes[:, :, LIGHTS == light] = UNLIT
        codes[:, light, LIGHTS == light] = LIGHT + light - 1
    return np.eye(len(CHARACTERS), dtype=np.uint8)[codes]


LIGHTS = _light_map()
_BOARDS = _boards()


class State(NamedTuple):
    """N games; L = sequence_length."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    frame: Array  # int64 [N]: 0 at the first observation
    sequence: Array  # int8 [N, L]: the lights to be entered, 0 left, 1 top, 2 right, 3 bottom
    row: Array  # int64 [N]: position of the player
    col: Array  # int64 [N]: position of the player
    lit: Array  # int64 [N]: the light that the player has turned on, 0 none, else 1 + the light
    entered: Array  # int64 [N]: lights entered so far, correct or not
    correct: Array  # int64 [N]: correct elements
    deadline: Array  # int64 [N]: frame at which the episode ends
    solved: Array  # bool [N]: the complete sequence was correct


class Params(NamedTuple):
    """The constructor's arguments, in the form that compiled functions use."""

    sequence_length: int
    off_frames: int
    cycle_frames: int  # Frames of an element: first all lights are off, then one is on
    demo_frames: int  # Frames until the last light of the demonstration is off
    free_frame: int  # First frame at which the player can move
    timeout_frames: int  # `timeout.NEVER` for none
    show_sequence: bool


def new_state(num_envs: int, sequence_length: int) -> State:
    return zeroed(State, num_envs, sequence=(np.int8, sequence_length))


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: sample a sequence."""
    for element in range(params.sequence_length):
        state.sequence[i, element] = integer(state.random, i, NUM_LIGHTS)
    begin(state, params, i)


@kernel
def begin(state: State, params: Params, i: int) -> None:
    """Go to frame 0 of the level of environment i."""
    state.frame[i], state.row[i], state.col[i] = 0, START[0], START[1]
    state.lit[i], state.entered[i], state.correct[i] = 0, 0, 0
    state.deadline[i], state.solved[i] = params.timeout_frames, False


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    frame, row, col, lit = state.frame[i] + 1, state.row[i], state.col[i], state.lit[i]
    entered, correct, deadline = state.entered[i], state.correct[i], state.deadline[i]
    over = frame >= deadline
    reward = STEP_REWARD if frame > 1 and not over else 0.0
    if frame >= params.free_frame and entered < params.sequence_length:
        row = min(max(row + _DOWN[action], 1), ROWS - 2)
        col = min(max(col + _RIGHT[action], 1), COLS - 2)
        light = LIGHTS[row, col]
        if lit == 0 and light > 0:
            right = state.sequence[i, entered] == light - 1
            lit, entered, correct = light, entered + 1, correct + right
            reward += RIGHT_LIGHT_REWARD if right else 0.0
            if entered == params.sequence_length and frame + 1 < deadline:
                deadline = frame + 3  # two more frames have a cost; the third ends the game, even after the timeout
        elif lit > 0 and light == 0:
            lit = 0
    state.row[i], state.col[i], state.lit[i], state.entered[i] = row, col, lit, entered
    state.correct[i], state.solved[i] = correct, correct == params.sequence_length
    state.frame[i], state.deadline[i] = frame, deadline
    return reward, over, False


@kernel
def scene(state: State, params: Params, i: int) -> tuple[int, int, int, bool, int]:
    """Contents of environment i: (player's row, column, light on or 0, whether free, first element shown)."""
    frame, lit, entered = state.frame[i], state.lit[i], state.entered[i]
    element = min(frame // params.cycle_frames, params.sequence_length - 1)
    demonstrated = state.sequence[i, element] + 1
    if frame - element * params.cycle_frames >= params.off_frames and frame < params.demo_frames:
        lit = demonstrated
    first = entered if params.show_sequence else params.sequence_length
    return state.row[i], state.col[i], lit, frame >= params.free_frame, first


@kernel
def observe(state: State, params: Params, i: int, planes: Array) -> None:
    """Write the observation of environment i: binary planes [17, 21, 8]."""
    row, col, lit, free, first = scene(state, params, i)
    board = _BOARDS[np.intp(free), lit]
    for r in range(ROWS):
        for c in range(COLS):
            for plane in range(8):
                planes[r, c, plane] = board[r, c, plane]
    length = params.sequence_length
    width = SLOTS // length
    for element in range(first, length):
        paint(planes, 0, 1 + element * width, 1, width, WALL, LIGHT + state.sequence[i, element])
    for plane in range(8):
        planes[row, col, plane] = plane == PLAYER
