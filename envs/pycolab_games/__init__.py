"""Cued Catch, T-maze and Sequence Recall on the pycolab engine: readable references for the compiled environments.

With the same level and actions, a game equals the compiled environment frame by frame (tests/envs/pycolab_games
compares them), but it is a hundred times slower. `make_game` builds a game; `game.its_showtime()` returns the first
observation and `game.play(action)` each later one, with the actions of the compiled environment; `planes` converts
their boards to observations of the compiled environment. `--env-args engine=pycolab` selects `PycolabBatch`.
"""

from types import SimpleNamespace
from typing import Any

from pycolab.engine import Engine

from ..registration import default_values, find_environment, make_batch
from .batch import GAMES, planes

__all__ = ["GAMES", "make_game", "planes"]


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
    values = default_values(environment) | values | parameters
    return GAMES[environment.name][0].make_game(batch.level(0), SimpleNamespace(**values))
