"""Cued Catch: learn what four cues mean, then catch the ball that each cue indicates.

Everything except the player's row is a function of the frame number:

    frame 0 .. 4d-1     teaching: cue 3 for d frames, then cues 2, 1, 0, each with the symbol of its ball
    elapsed 1, 2, ...   trials of 7 frames: trial = elapsed // 7, the balls are in column 8 - elapsed % 7

with d = initial_cue_duration and elapsed = frame - 4d + 1 (so the first trial starts with the balls in column 7), and
num_cues instead of 4 if there are fewer.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ..base.compiled import kernel
from ..base.errors import check_flag, check_integer, check_numbers, check_range
from .arrays import Array, zeroed
from .drawing import BLACK, WHITE, Canvas, Color, mosaic
from .engine import BatchedEnv, batch_loops
from .parts import paint, put
from .randomness import integer, normal
from .single import single

ROWS, COLS = 7, 12
CHARACTERS = " PQab"  # Nothing, player, cue layer, top ball, bottom ball: the planes of an observation, in this order
NOTHING, PLAYER, CUE, BALL_A, BALL_B = range(len(CHARACTERS))
UP, DOWN = 0, 1
NUM_CUES = 4
TOP_ROW, PLAYER_COL, FAR_COL = 1, 3, 8
TRIAL_FRAMES = 7
CATCH = TRIAL_FRAMES - 1  # Frame of a trial in which the catch is evaluated: one after the balls were at the player
_COLORS: tuple[Color, ...] = (BLACK, WHITE, (0, 225, 0), (255, 225, 0), (0, 225, 235))  # Colors of the planes


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
    num_trials: int
    num_cues: int
    initial_cue_duration: int
    cue_duration: int
    reward_free_trials: int
    always_show_ball_symbol: bool
    reward_sigma: float


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Sample which two cues mean the top ball, and the cue of every trial."""
    top_left = 2
    for cue in range(NUM_CUES):
        # sampling without replacement: a cue means the top ball with probability (top balls left) / (cues left)
        top = integer(state.random, i, NUM_CUES - cue) < top_left
        state.balls[i, cue] = 0 if top else 1
        top_left -= top
    for trial in range(state.cues.shape[1]):
        state.cues[i, trial] = integer(state.random, i, params.num_cues)
    begin(state, i)


@kernel
def begin(state: State, i: int) -> None:
    state.frame[i], state.row[i], state.caught[i], state.missed[i], state.solved[i] = 0, 0, 0, 0, False


@kernel
def clock(params: Params, frame: int) -> tuple[int, int]:
    """Return (trial, frame of the trial) at a frame of the episode; the trial is -1 during the teaching phase."""
    elapsed = frame - params.num_cues * params.initial_cue_duration + 1
    return (elapsed // TRIAL_FRAMES, elapsed % TRIAL_FRAMES) if elapsed > 0 else (-1, 0)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Advance by one frame. The player moves first, so its last move before the catch still counts."""
    state.frame[i] += 1
    if action == UP or action == DOWN:
        state.row[i] = action
    trial, moment = clock(params, state.frame[i])
    reward, over = 0.0, trial == params.num_trials
    if over:
        state.solved[i] = state.missed[i] == 0
    if moment == CATCH:
        right = state.balls[i, state.cues[i, trial]] == state.row[i]
        state.caught[i] += right
        if trial >= params.reward_free_trials:
            state.missed[i] += not right
            reward = 1.0 if right else 0.0
            if params.reward_sigma > 0.0:
                reward += params.reward_sigma * normal(state.random, i)
    return reward, over, False


@kernel
def observe(state: State, params: Params, i: int, planes: Array) -> None:
    trial, moment = clock(params, state.frame[i])
    cue, symbol = -1, -1  # the visible cue, and the ball whose symbol is visible
    if trial < 0:
        cue = params.num_cues - 1 - state.frame[i] // params.initial_cue_duration
        symbol = int(state.balls[i, cue])
    elif moment - (trial == 0) < params.cue_duration:
        cue = int(state.cues[i, trial])
        symbol = int(state.balls[i, cue]) if params.always_show_ball_symbol else -1
    for r in range(ROWS):
        for c in range(COLS):
            planes[r, c, NOTHING] = 1
            for plane in range(1, 5):
                planes[r, c, plane] = 0
    if trial < 0 or FAR_COL - moment != PLAYER_COL:  # otherwise the balls hide the player
        put(planes, TOP_ROW + state.row[i], PLAYER_COL, NOTHING, PLAYER)
    if trial < 0:  # the marks of the teaching phase
        paint(planes, 1, 0, 2, 2, NOTHING, CUE)
        paint(planes, 1, 10, 2, 2, NOTHING, CUE)
    else:
        put(planes, TOP_ROW, FAR_COL - moment, NOTHING, BALL_A)
        put(planes, TOP_ROW + 1, FAR_COL - moment, NOTHING, BALL_B)
    if symbol >= 0:
        paint(planes, 3, 6 * symbol, 2, 6, NOTHING, CUE)
    if cue >= 0:
        paint(planes, 5, 3 * cue, 2, 3, NOTHING, CUE)


class CuedCatchBatch(BatchedEnv):
    """N games of Cued Catch.

    Two balls fly toward the player, one in the top row and one in the bottom row, and a cue indicates the one to catch.
    Two of the four cues mean the top ball and two the bottom ball, resampled in every episode. The teaching phase shows
    cues 3, 2, 1 and 0 for `initial_cue_duration` frames each, with the symbol of its ball; then follow `num_trials`
    trials of 7 frames, each with a random cue. The player must be in the row of the correct ball one frame after the
    balls were in the player's column; the move made in that frame still counts.

    Actions: 0 up, 1 down, 2 left, 3 right, 4 stay; left and right do nothing.
    Observations:
        uint8 [7, 12, 5], binary; one plane for each of the characters " PQab", in this order: nothing, player, cue
        layer, top ball, bottom ball. Every cell shows only the topmost character: balls hide the player.
        The cue layer: marks of the teaching phase in rows 1-2, columns 0-1 and 10-11; symbol of the top (bottom) ball
        in rows 3-4, columns 0-5 (6-11); cue c in rows 5-6, columns 3c to 3c + 2.

    Start: the player is in the top row, and the teaching phase begins.
    Rewards: 1 for catching the correct ball after the first `reward_free_trials` trials, plus noise of `reward_sigma`
        in every rewarded trial; else 0. At best num_trials - reward_free_trials = 60. Random play earns about 30.
    Episode end: terminated one frame after the last trial: num_cues initial_cue_duration + 7 num_trials - 1 = 739
        actions.
    Info: `solved` (every rewarded ball was caught), `caught` (correct balls caught, rewarded or not).

    Args:
        num_trials: trials in an episode.
        num_cues: number of cues, the first 1 to 4; balls are sampled as if there were four. With one cue,
            only its meaning must be remembered.
        initial_cue_duration: frames for which each cue is taught.
        cue_duration: frames for which a trial shows its cue (a trial has 7).
        reward_free_trials: initial trials without reward; the more of them, the longer the agent must remember the
            cues before it is rewarded.
        always_show_ball_symbol: show the ball symbol with every cue: the memory-free twin.
        reward_sigma: standard deviation of normal noise on the reward of every rewarded trial.
        engine: "compiled", or "pycolab": a readable game with the same rules, a hundred times slower (`--env-args`).

    Differences from the original: no action quits the game.
    References: Stepleton et al. 2018, "Low-pass recurrent neural networks", 5.2.1 and B.1.
    """

    symbols = tuple(zip(_COLORS[1:], ("you", "cue; taught: 3-4 its ball", "top ball", "bottom ball"), strict=True))
    episode_fields = ("solved", "caught")
    fact_values = {  # noqa: RUF012
        **{f"ball_{cue}": ("top", "bottom") for cue in range(1, NUM_CUES + 1)},
        "cue": tuple(f"cue {cue}" for cue in range(1, NUM_CUES + 1)),
        "ball": ("top", "bottom"),
        "trial": (),
    }
    action_names = ("up", "down", "left", "right", "stay")
    level_keys = ("balls", "cues")
    loops = batch_loops(start, advance, observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        num_trials: int = 100,
        num_cues: int = NUM_CUES,
        initial_cue_duration: int = 10,
        cue_duration: int = 10,
        reward_free_trials: int = 40,
        always_show_ball_symbol: bool = False,
        reward_sigma: float = 0.0,
        **batch: Any,
    ) -> None:
        check_flag("always_show_ball_symbol", always_show_ball_symbol)
        check_integer("num_trials", num_trials, 1, None)
        check_integer("num_cues", num_cues, 1, NUM_CUES)
        check_integer("initial_cue_duration", initial_cue_duration, 1, None)
        check_integer("cue_duration", cue_duration, 1, None)
        check_integer("reward_free_trials", reward_free_trials, 0, num_trials)
        check_range("reward_sigma", reward_sigma, 0.0, None)
        numbers = num_trials, num_cues, initial_cue_duration, cue_duration, reward_free_trials
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (ROWS, COLS, len(CHARACTERS)), np.uint8),
            state=zeroed(State, num_envs, balls=(np.int8, NUM_CUES), cues=(np.int8, num_trials + 1)),
            params=Params(*numbers, always_show_ball_symbol, float(reward_sigma)),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index`: `{"balls", "cues"}`, for each of the 4 cues 0 (top ball) or 1 (bottom
        ball), and num_trials + 1 cues, of which the last appears only in the final observation."""
        return {"balls": self.state.balls[index].tolist(), "cues": self.state.cues[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        balls = check_numbers("level['balls']", level["balls"], NUM_CUES, 2)
        cues = check_numbers("level['cues']", level["cues"], self.params.num_trials + 1, self.params.num_cues)
        self.state.balls[index], self.state.cues[index] = balls, cues
        begin(self.state, index)

    def fact_columns(self) -> list[Array]:
        state, indices = self.state, np.arange(self.num_envs)
        trial = np.array([clock(self.params, int(frame))[0] for frame in state.frame])
        taught = self.params.num_cues - 1 - state.frame // self.params.initial_cue_duration
        cue = np.where(trial < 0, taught, state.cues[indices, trial])
        return [*state.balls.T, cue, state.balls[indices, cue], trial + 1]

    def paint(self, index: int, full: bool = True) -> Canvas:
        planes = np.zeros((ROWS, COLS, len(CHARACTERS)), np.uint8)
        params = self.params._replace(always_show_ball_symbol=full or self.params.always_show_ball_symbol)
        observe(self.state, params, index, planes)
        return mosaic(np.array(_COLORS)[planes.argmax(2)], 36)


CuedCatch = single(CuedCatchBatch)
