"""The rules of Cued Catch for one environment.

Everything except the player's row is a function of the frame number:

    frame 0 .. 4d-1     teaching: cue 3 for d frames, then cues 2, 1, 0, each with the symbol of its ball
    elapsed 1, 2, ...   trials of 7 frames: trial = elapsed // 7, the balls are in column 8 - elapsed % 7

with d = initial_cue_duration and elapsed = frame - 4d + 1 (so the first trial starts with the balls in column 7). With
num_cues below 4, the highest cues are never shown, and the teaching phase is shorter accordingly.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..planes import paint, put
from ..randomness import integer, normal

ROWS, COLS = 7, 12
CHARACTERS = " PQab"  # Nothing, player, cue layer, top ball, bottom ball: the planes of an observation, in this order
NOTHING, PLAYER, CUE, BALL_A, BALL_B = range(len(CHARACTERS))
ACTION_NAMES = ("up", "down", "left", "right", "stay")
UP, DOWN = 0, 1
NUM_CUES = 4
TOP_ROW, PLAYER_COL, FAR_COL = 1, 3, 8
TRIAL_FRAMES = 7
CATCH = TRIAL_FRAMES - 1
"""Frame of a trial in which the catch is evaluated: one after the balls were in the player's column."""


class State(NamedTuple):
    """N games; K = num_trials."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    frame: Array  # int64 [N]: 0 at the first observation
    row: Array  # int64 [N]: the player's row, 0 top or 1 bottom
    balls: Array  # int8 [N, 4]: the ball that each cue means, 0 top or 1 bottom
    cues: Array  # int8 [N, K + 1]: the cue of each trial; the last one appears in the final observation.
    caught: Array  # int64 [N]: correct balls caught in this episode, rewarded or not
    missed: Array  # int64 [N]: correct balls missed in rewarded trials
    solved: Array  # bool [N]: the episode has ended and every rewarded ball was caught


class Params(NamedTuple):
    """The constructor's arguments, in the form that compiled functions use."""

    num_trials: int
    num_cues: int
    initial_cue_duration: int
    cue_duration: int
    reward_free_trials: int
    always_show_ball_symbol: bool
    reward_sigma: float


def new_state(num_envs: int, num_trials: int) -> State:
    return zeroed(State, num_envs, balls=(np.int8, NUM_CUES), cues=(np.int8, num_trials + 1))


@kernel
def start(state: State, params: Params, i: int) -> None:
    draw_level(state, params, i)
    begin(state, i)


@kernel
def draw_level(state: State, params: Params, i: int) -> None:
    """Sample which two cues mean the top ball, and the cue of every trial."""
    balls, cues = state.balls[i], state.cues[i]
    top_left = 2
    for cue in range(NUM_CUES):
        # sampling without replacement: a cue means the top ball with probability (top balls left) / (cues left)
        top = integer(state.random, i, NUM_CUES - cue) < top_left
        balls[cue] = 0 if top else 1
        top_left -= top
    for trial in range(len(cues)):
        cues[trial] = integer(state.random, i, params.num_cues)


@kernel
def begin(state: State, i: int) -> None:
    """Go to frame 0 of the level of environment i."""
    state.frame[i], state.row[i], state.caught[i], state.missed[i] = 0, 0, 0, 0
    state.solved[i] = False


@kernel
def clock(params: Params, frame: int) -> tuple[int, int]:
    """Return (trial, frame of the trial) at a frame of the episode; the trial is -1 during the teaching phase."""
    elapsed = frame - params.num_cues * params.initial_cue_duration + 1
    return (elapsed // TRIAL_FRAMES, elapsed % TRIAL_FRAMES) if elapsed > 0 else (-1, 0)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Advance environment i by one frame; return (reward, whether the episode ended, False). The player moves first,
    so its last move before the catch still counts."""
    state.frame[i] += 1
    if action == UP or action == DOWN:
        state.row[i] = action
    trial, moment = clock(params, state.frame[i])
    over = trial == params.num_trials
    if over:
        state.solved[i] = state.missed[i] == 0
    if moment != CATCH:
        return 0.0, over, False
    right = state.balls[i, state.cues[i, trial]] == state.row[i]
    state.caught[i] += right
    if trial < params.reward_free_trials:
        return 0.0, over, False
    state.missed[i] += not right
    reward = 1.0 if right else 0.0
    if params.reward_sigma > 0.0:
        reward += params.reward_sigma * normal(state.random, i)
    return reward, over, False


@kernel
def scene(state: State, params: Params, i: int) -> tuple[int, int, int, int]:
    """Contents of environment i: (player's row, column of the balls or 0, cue or -1, ball whose symbol is shown or
    -1)."""
    row = state.row[i]
    trial, moment = clock(params, state.frame[i])
    if trial < 0:
        cue = params.num_cues - 1 - state.frame[i] // params.initial_cue_duration
        return row, 0, cue, int(state.balls[i, cue])
    if moment - (trial == 0) >= params.cue_duration:
        return row, FAR_COL - moment, -1, -1
    cue = int(state.cues[i, trial])
    return row, FAR_COL - moment, cue, int(state.balls[i, cue]) if params.always_show_ball_symbol else -1


@kernel
def observe(state: State, params: Params, i: int, planes: Array) -> None:
    """Write the observation of environment i: binary planes [7, 12, 5]."""
    row, column, cue, symbol = scene(state, params, i)
    for r in range(ROWS):
        for c in range(COLS):
            planes[r, c, NOTHING] = 1
            for plane in range(1, 5):
                planes[r, c, plane] = 0
    if column != PLAYER_COL:  # otherwise the balls hide the player
        put(planes, TOP_ROW + row, PLAYER_COL, NOTHING, PLAYER)
    if column == 0:  # the marks of the teaching phase
        paint(planes, 1, 0, 2, 2, NOTHING, CUE)
        paint(planes, 1, 10, 2, 2, NOTHING, CUE)
    else:
        put(planes, TOP_ROW, column, NOTHING, BALL_A)
        put(planes, TOP_ROW + 1, column, NOTHING, BALL_B)
    if symbol >= 0:
        paint(planes, 3, 6 * symbol, 2, 6, NOTHING, CUE)
    if cue >= 0:
        paint(planes, 5, 3 * cue, 2, 3, NOTHING, CUE)
