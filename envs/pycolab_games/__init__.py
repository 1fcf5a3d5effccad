"""Cued Catch, T-maze and Sequence Recall on the pycolab engine: readable references for the compiled environments.

With the same level and actions, a game equals the compiled environment frame by frame (tests/envs/pycolab_games
compares them), but it is a hundred times slower. `make_game` builds a game; `game.its_showtime()` returns the first
observation and `game.play(action)` each later one, with the actions of the compiled environment; `planes` converts
their boards to observations of the compiled environment. `--env-args engine=pycolab` selects `PycolabBatch`.
"""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from pycolab.engine import Engine

from .. import cued_catch as compiled_cued_catch
from .. import sequence_recall as compiled_sequence_recall
from ..arrays import Array
from ..engine import BatchedEnv
from ..registration import Environment, environment_parameters, find_environment, make_batch
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

    The compiled environment runs alongside: it samples the levels, counts results and draws images.

    Args:
        batch: the compiled environments.
        environment: their entry in the registry.
        values: arguments of their constructor.
    """

    def __init__(self, batch: BatchedEnv, environment: Environment, values: dict[str, Any]) -> None:
        self._batch, self._environment, self._values = batch, environment, values
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
            observation[index] = planes(self._environment.name, shown.board)
            reward[index], terminated[index] = paid or 0.0, discount == 0

    def save(self) -> dict[str, Array]:
        """Raise ValueError: a game on the pycolab engine has no state that can be restored."""
        raise ValueError("games on the pycolab engine cannot be saved")

    def _begin(self, index: int, observation: Array) -> None:
        self._games[index] = _game_of_level(self._environment, self._batch.level(index), self._values)
        shown, _, _ = self._games[index].its_showtime()
        observation[index] = planes(self._environment.name, shown.board)


def make_game(name: str, level: dict[str, Any] | None = None, **parameters: Any) -> Engine:
    """Make a pycolab game of the environment or twin with the short name `name`, ready for `its_showtime`.

    Args:
        level: a level in the environment's form; None samples one.
        parameters: parameters of the environment; it also sets the defaults.

    Raises ValueError like the environment itself, and for environments without a pycolab game.
    """
    environment, values = find_environment(name)
    if environment.name not in GAMES:
        raise ValueError(f"no pycolab game of {name!r}; available: {', '.join(GAMES)}")
    batch = make_batch(name, 1, **parameters)
    batch.reset()
    if level is not None:
        batch.set_level(0, level)
    return _game_of_level(environment, batch.level(0), values | parameters)


def planes(name: str, board: Array) -> Array:
    """Convert a board uint8 [rows, cols] of the game `name` to binary planes uint8 [rows, cols, characters]."""
    return _looks(name.removesuffix("-twin"))[board]


def _game_of_level(environment: Environment, level: dict[str, Any], values: dict[str, Any]) -> Engine:
    defaults = {name: parameter.default for name, parameter in environment_parameters(environment).items()}
    return GAMES[environment.name][0].make_game(level, SimpleNamespace(**(defaults | values)))


@lru_cache
def _looks(name: str) -> Array:
    """Return the planes of every character code, uint8 [128, characters]."""
    game, characters = GAMES[name]
    shown = dict(zip(characters, characters, strict=True)) | game.REPAINT
    table = np.zeros((128, len(characters)), np.uint8)
    for character, other in shown.items():
        table[ord(character), characters.index(other)] = 1
    return table
