"""Batches of games on the pycolab engine, and their observations."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import cued_catch as compiled_cued_catch
from .. import sequence_recall as compiled_sequence_recall
from ..arrays import Array
from ..engine import BatchedEnv
from ..t_maze import rules
from . import cued_catch, sequence_recall, t_maze

GAMES = {
    "cued-catch": (cued_catch, compiled_cued_catch.CHARACTERS),
    "t-maze": (t_maze, rules.CHARACTERS),
    "sequence-recall": (sequence_recall, compiled_sequence_recall.CHARACTERS),
}
"""By short name: the module of the game, and the characters of the planes of the compiled environment."""


class PycolabBatch:
    """N games on the pycolab engine, with the observations, rewards and ends of these games.

    `batch`, the compiled environments, runs alongside: it samples the levels, counts results and draws images. `values`
    are all arguments of their constructor.
    """

    def __init__(self, batch: BatchedEnv, name: str, values: dict[str, Any]) -> None:
        self._batch, self._name, self._values = batch, name, SimpleNamespace(**values)
        self._games: list[Any] = [None] * batch.num_envs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset_into(self, observation: Array, seed: int | None = None) -> None:
        self._batch.reset_into(observation, seed)
        for index in range(len(self._games)):
            self._begin(index, observation)

    def step_into(self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        over = self._batch.state.over.copy()
        self._batch.step_into(actions, observation, reward, terminated, truncated)
        for index, game in enumerate(self._games):
            if over[index]:
                self._begin(index, observation)
                continue
            shown, paid, discount = game.play(int(actions[index]))
            observation[index] = planes(self._name, shown.board)
            reward[index], terminated[index] = paid or 0.0, discount == 0

    def save(self) -> dict[str, Array]:
        """Raise ValueError: a game on the pycolab engine has no state that can be restored."""
        raise ValueError("games on the pycolab engine cannot be saved")

    def _begin(self, index: int, observation: Array) -> None:
        self._games[index] = GAMES[self._name][0].make_game(self._batch.level(index), self._values)
        shown, _, _ = self._games[index].its_showtime()
        observation[index] = planes(self._name, shown.board)


def planes(name: str, board: Array) -> Array:
    """Convert a board uint8 [rows, cols] of the game `name` to binary planes uint8 [rows, cols, characters]."""
    return _looks(name.removesuffix("-twin"))[board]


@lru_cache
def _looks(name: str) -> Array:
    """Return the planes of every character code, uint8 [128, characters]."""
    game, characters = GAMES[name]
    shown = dict(zip(characters, characters, strict=True)) | game.REPAINT
    table = np.zeros((128, len(characters)), np.uint8)
    for character, other in shown.items():
        table[ord(character), characters.index(other)] = 1
    return table
