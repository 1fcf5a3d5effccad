"""Cued Catch, T-maze and Sequence Recall on the pycolab engine: readable references for the compiled environments.

With the same level and actions, a game equals the compiled environment frame by frame (tests/envs/pycolab_games
compares them), but it is a hundred times slower. `make_game` builds a game; `game.its_showtime()` returns the first
observation and `game.play(action)` each later one, with the actions of the compiled environment; `planes` converts
their boards to observations of the compiled environment.
"""

from functools import lru_cache
from typing import Any

from pycolab.engine import Engine

from ..arrays import Array
from ..registration import constructor_values, find_environment, make_batch
from .batch import GAMES, find_game, looks

__all__ = ["GAMES", "make_game", "planes"]


def make_game(name: str, level: dict[str, Any] | None = None, **parameters: Any) -> Engine:
    """Make a pycolab game of the environment or twin with the short name `name`, ready for `its_showtime`.

    Args:
        level: a level in the environment's form; None samples one.
        parameters: parameters of the environment; it also sets the defaults.

    Raises ValueError like the environment itself, and for environments without a pycolab game.
    """
    batch = make_batch(name, 1, **parameters)
    environment, values = find_environment(name)
    game = find_game(environment.name)
    batch.reset()
    if level is not None:
        batch.set_level(0, level)
    return game.make(batch.level(0), **constructor_values(environment, values | parameters))


def planes(name: str, board: Array) -> Array:
    """Convert a board uint8 [rows, cols] of the game `name` to binary planes uint8 [rows, cols, characters]."""
    return _looks(find_environment(name)[0].name)[board]


@lru_cache
def _looks(name: str) -> Array:
    return looks(find_game(name))
