"""Cued Catch, T-maze and Sequence Recall on the pycolab engine: the readable references of the compiled environments.

A game of the same level under the same actions equals the compiled environment frame by frame (tests/envs/pycolab_games
compares them), a hundred times slower. `make_game` builds one; `game.its_showtime()` is the first observation and
`game.play(action)` each next one, with the action numbers of the compiled environment; `planes` turns what both return
into the observation of the compiled environment.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from pycolab.engine import Engine

from ..arrays import Array
from ..cued_catch.rules import CHARACTERS as CUED_CATCH
from ..registration import environment_parameters, find_environment, make_batch
from ..sequence_recall.rules import CHARACTERS as SEQUENCE_RECALL
from ..t_maze.rules import CHARACTERS as T_MAZE
from . import cued_catch, sequence_recall, t_maze


class Game(NamedTuple):
    """How to build a game, and how to read its board."""

    make: Callable[..., Engine]
    characters: str  # The characters of the planes, in order
    repaint: dict[str, str]  # Characters of the board that look like others


GAMES = {
    "cued-catch": Game(cued_catch.make_game, CUED_CATCH, {}),
    "t-maze": Game(t_maze.make_game, T_MAZE, t_maze.REPAINT),
    "sequence-recall": Game(sequence_recall.make_game, SEQUENCE_RECALL, sequence_recall.REPAINT),
}


def make_game(name: str, level: dict[str, Any] | None = None, **parameters: Any) -> Engine:
    """A pycolab game of the environment `name` (its short name, a twin's too), ready for `its_showtime`.

    Args:
        level: in the form of the environment's levels; None draws one.
        parameters: those of the environment, with its defaults.

    Raises ValueError for whatever the environment itself refuses, and for environments without a pycolab game.
    """
    batch = make_batch(name, 1, **parameters)
    environment, values = find_environment(name)
    game = find_game(environment.name)
    batch.reset()
    if level is not None:
        batch.set_level(0, level)
    defaults = {key: parameter.default for key, parameter in environment_parameters(environment).items()}
    return game.make(batch.level(0), **(defaults | values | parameters))


def planes(name: str, board: Array) -> Array:
    """The binary planes uint8 [rows, cols, characters] of a pycolab board uint8 [rows, cols] of the game `name`."""
    return _looks(find_environment(name)[0].name)[board]


@lru_cache
def _looks(name: str) -> Array:
    """The planes of every character code, uint8 [128, characters]."""
    game = find_game(name)
    looks = np.zeros((128, len(game.characters)), np.uint8)
    shown = {character: character for character in game.characters} | game.repaint
    for character, other in shown.items():
        looks[ord(character), game.characters.index(other)] = 1
    return looks


def find_game(name: str) -> Game:
    """The game of a short name; ValueError names those that there are."""
    if name not in GAMES:
        raise ValueError(f"no pycolab game of {name!r}; there are: {', '.join(GAMES)}")
    return GAMES[name]
