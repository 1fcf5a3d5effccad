"""Cued Catch: learn what four cues mean, then catch the ball that each cue indicates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_flag, check_integer, check_numbers, check_range
from ..arrays import Array
from ..drawing import BLACK, WHITE, Canvas, Color
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..single import single
from . import rules
from .rules import CHARACTERS, COLS, NUM_CUES, ROWS, Params, new_state

_GREEN, _GRAY = (0, 225, 0), (26, 26, 32)
_COLORS: dict[int, Color] = {rules.CUE: _GREEN, rules.BALL_A: (255, 225, 0), rules.BALL_B: (0, 225, 235)}


class CuedCatchBatch(BatchedEnv):
    """N games of Cued Catch.

    Description:
        Two balls fly toward the player, one in the top row and one in the bottom row, and a cue indicates the
        one to catch. Two of the four cues mean the top ball and two the bottom ball, resampled in every episode.
        The teaching phase shows cues 3, 2, 1 and 0 for `initial_cue_duration` frames each, with the symbol of its ball;
        then follow `num_trials` trials of 7 frames, each with a random cue. The player must be in the row of the
        correct ball one frame after the balls were in the player's column; the move made in that frame still counts.

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
        num_envs: number of environments.
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
        batch: `first_index` and `render_mode`, see BatchedEnv.

    Differences from the original: there is no action that quits the game.

    References: Stepleton et al. 2018, "Low-pass recurrent neural networks", 5.2.1 and B.1.
    """

    symbols = (
        (WHITE, "you"),
        (_COLORS[rules.BALL_A], "top ball"),
        (_COLORS[rules.BALL_B], "bottom ball"),
        (_GREEN, "cue; taught: 3-4 its ball"),
    )
    episode_fields = ("solved", "caught")
    fact_values = {  # noqa: RUF012
        **{f"ball_{cue}": ("top", "bottom") for cue in range(1, NUM_CUES + 1)},
        "cue": tuple(f"cue {cue}" for cue in range(1, NUM_CUES + 1)),
        "ball": ("top", "bottom"),
        "trial": (),
    }
    action_names = rules.ACTION_NAMES
    level_keys = ("balls", "cues")
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: rules.State
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
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (ROWS, COLS, len(CHARACTERS)), np.uint8),
            state=new_state(num_envs, num_trials),
            params=Params(
                num_trials,
                num_cues,
                initial_cue_duration,
                cue_duration,
                reward_free_trials,
                always_show_ball_symbol,
                float(reward_sigma),
            ),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index`: `{"balls", "cues"}`. balls: for each of the 4 cues 0 (top ball) or 1
        (bottom ball). cues: num_trials + 1 cues, one for each trial and one that appears only in the final
        observation."""
        return {"balls": self.state.balls[index].tolist(), "cues": self.state.cues[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        balls = check_numbers("level['balls']", level["balls"], NUM_CUES, 2)
        cues = check_numbers("level['cues']", level["cues"], self.params.num_trials + 1, self.params.num_cues)
        self.state.balls[index], self.state.cues[index] = balls, cues
        rules.begin(self.state, index)

    def facts(self) -> dict[str, Array]:
        """Ball of each cue, the current cue and its ball, and the trial (0: teaching)."""
        state, indices = self.state, np.arange(self.num_envs)
        trial = np.array([rules.clock(self.params, int(frame))[0] for frame in state.frame])
        taught = self.params.num_cues - 1 - state.frame // self.params.initial_cue_duration
        cue = np.where(trial < 0, taught, state.cues[indices, trial]).astype(np.int64)
        balls = {f"ball_{k}": state.balls[:, k - 1].astype(np.int64) for k in range(1, NUM_CUES + 1)}
        return balls | {"cue": cue, "ball": state.balls[indices, cue].astype(np.int64), "trial": trial + 1}

    def paint(self, index: int, full: bool = True) -> Canvas:
        canvas = Canvas(ROWS, COLS, cell=36, background=_GRAY, caption_rows=1)
        board = self.observe(index).argmax(axis=2)
        for row, col in np.ndindex(ROWS, COLS):
            canvas.fill(row + 0.02, col + 0.02, BLACK, 0.96, 0.96)
            code = int(board[row, col])
            if code == rules.CUE:
                canvas.fill(row, col, _GREEN)
            elif code in _COLORS:
                canvas.disc(row, col, _COLORS[code])
            elif code == rules.PLAYER:
                canvas.fill(row + 0.1, col + 0.1, WHITE, 0.8, 0.8)
        canvas.text(ROWS, 0.3, self._caption(index, full), height=0.4)
        return canvas

    def _caption(self, index: int, full: bool) -> str:
        """Phase, cue and score; with `full`, also the ball of the cue."""
        facts = self.facts()
        cue, ball = (self.fact_values[name][facts[name][index]] for name in ("cue", "ball"))
        cue = f"{cue} ({ball} ball)" if full else cue
        trial = int(facts["trial"][index]) - 1
        if trial < 0:
            return f"teaching {cue}"
        free = trial < self.params.reward_free_trials
        phase = f"trial {min(trial + 1, self.params.num_trials)}, {'no reward yet' if free else 'rewarded'}"
        return f"{phase}, {cue}, caught {int(self.state.caught[index])}"


CuedCatch = single(CuedCatchBatch)
