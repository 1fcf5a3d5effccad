"""Cued Catch on the pycolab engine: a player, two balls, and a drape for cues, ball symbols and phase marks.

Update order P, a, b, Q, all in one group. A catch is evaluated with the balls' positions in the previous frame; then
the balls move, and the drape checks whether a new trial has begun.
"""

from typing import Any

import numpy as np
from pycolab.engine import Engine
from pycolab.prefab_parts.sprites import MazeWalker
from pycolab.things import Backdrop, Drape, Sprite

REPAINT: dict[str, str] = {}  # Characters of the board that the compiled environment shows as others
UP, DOWN = 0, 1


def make_game(level: dict[str, Any], parameters: Any) -> Engine:
    """Make a game of a level `{"balls", "cues"}`; the parameters are attributes named as those of CuedCatch."""
    game = Engine(7, 12)
    game.set_prefilled_backdrop(" ", np.full((7, 12), ord(" "), np.uint8), Backdrop)
    game.add_sprite("P", (1, 3), Player, parameters.reward_free_trials, parameters.reward_sigma)
    game.add_sprite("a", (1, 8), Ball)
    game.add_sprite("b", (2, 8), Ball)
    game.add_drape("Q", Signs, level, parameters)
    game.set_z_order("PabQ")
    return game


class Ball(Sprite):
    """Ball that is invisible until the end of the teaching phase, then repeatedly flies left."""

    def __init__(self, corner: Any, position: Any, character: str) -> None:
        super().__init__(corner, position, character)
        self.start = position  # Position at the start of all trials but the first
        self._visible = False

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        if not the_plot.get("taught"):
            return
        self._visible = True
        if self.position.col < things["P"].position.col:
            self._position = self.start
        else:
            self._position = self.Position(self.position.row, self.position.col - 1)


class Player(MazeWalker):
    """Player that moves between the rows of the balls; it is rewarded for being in that of the correct ball."""

    def __init__(self, corner: Any, position: Any, character: str, free_trials: int, sigma: float) -> None:
        super().__init__(corner, position, character, impassable="", confined_to_board=True)
        self._free_trials, self._sigma, self._random = free_trials, sigma, np.random.default_rng()

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        if actions == UP and self.position.row > things["a"].start.row:
            self._north(board, the_plot)
        elif actions == DOWN and self.position.row < things["b"].start.row:
            self._south(board, the_plot)
        ball, reward = things[the_plot.get("wanted", "a")], 0.0
        if ball.position.col == self.position.col:
            self._free_trials -= 1
            if self._free_trials < 0:
                noise = self._random.normal(0.0, self._sigma) if self._sigma else 0.0
                reward = float(ball.position.row == self.position.row) + noise
        the_plot.add_reward(reward)


class Signs(Drape):
    """Signs that teach the meaning of the cues, show one for every trial, and end the game after the last trial."""

    def __init__(self, curtain: Any, character: str, level: dict[str, Any], parameters: Any) -> None:
        super().__init__(curtain, character)
        self._balls, self._cues, self._parameters = level["balls"], iter(level["cues"]), parameters
        self._lessons = list(np.repeat(range(parameters.num_cues)[::-1], parameters.initial_cue_duration))
        self._trials_left = parameters.num_trials
        self._cue, self._frames_left = 0, 0

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self.curtain[:] = False
        if self._lessons:
            self.curtain[1:3, :2] = self.curtain[1:3, -2:] = True
            self._show(self._lessons.pop(0), symbol=True)
            if not self._lessons:
                the_plot["taught"] = True
                self._begin_trial(the_plot)
            return
        if things["a"].position == things["a"].start:
            self._begin_trial(the_plot)
        if self._frames_left > 0:
            self._show(self._cue, symbol=self._parameters.always_show_ball_symbol)
        self._frames_left -= 1

    def _begin_trial(self, the_plot: Any) -> None:
        self._cue, self._frames_left = next(self._cues), self._parameters.cue_duration
        the_plot["wanted"] = "ab"[self._balls[self._cue]]
        if self._trials_left == 0:
            the_plot.terminate_episode()
        self._trials_left -= 1

    def _show(self, cue: int, symbol: bool) -> None:
        self.curtain[5:7, 3 * cue : 3 * cue + 3] = True
        if symbol:
            half = self._balls[cue]
            self.curtain[3:5, 6 * half : 6 * half + 6] = True
