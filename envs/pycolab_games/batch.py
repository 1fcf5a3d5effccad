"""`--env-args engine=pycolab`: games on the pycolab engine with the interface of the compiled environments."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from pycolab.engine import Engine

from ..arrays import Array
from ..cued_catch.rules import CHARACTERS as CUED_CATCH
from ..engine import BatchedEnv
from ..sequence_recall.rules import CHARACTERS as SEQUENCE_RECALL
from ..t_maze.rules import CHARACTERS as T_MAZE
from . import cued_catch, sequence_recall, t_maze


class Game(NamedTuple):
    """How to build a game, and how to read its board."""

    make: Callable[..., Engine]
    characters: str  # The characters of the planes, in order
    repaint: dict[str, str]  # Characters of the board that planes show as others


GAMES = {
    "cued-catch": Game(cued_catch.make_game, CUED_CATCH, {}),
    "t-maze": Game(t_maze.make_game, T_MAZE, t_maze.REPAINT),
    "sequence-recall": Game(sequence_recall.make_game, SEQUENCE_RECALL, sequence_recall.REPAINT),
}


class PycolabBatch:
    """N games on the pycolab engine, with the observations, rewards and ends of these games.

    The compiled environment runs alongside: it samples the levels, counts results and draws images.

    Args:
        batch: the compiled environments.
        name: short name of the environment.
        parameters: all parameters of its constructor.
    """

    def __init__(self, batch: BatchedEnv, name: str, parameters: dict[str, Any]) -> None:
        if parameters.get("endless"):
            raise ValueError("endless is True; allowed with engine pycolab: False")
        game = find_game(name)
        self._batch, self._make, self._looks = batch, partial(game.make, **parameters), looks(game)
        self._games: list[Any] = [None] * batch.num_envs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset_into(self, observation: Array, seed: int | None = None) -> None:
        """Start an episode in every game and write all observations."""
        self._batch.reset_into(observation, seed)
        for index in range(len(self._games)):
            self._begin(index, observation)

    def step_into(self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all games; write observation [N, ...], reward float32 [N], terminated and truncated bool [N]."""
        over = self._batch.state.over.copy()
        self._batch.step_into(actions, observation, reward, terminated, truncated)
        for index, game in enumerate(self._games):
            if over[index]:
                self._begin(index, observation)
                continue
            shown, paid, discount = game.play(int(actions[index]))
            observation[index], reward[index], terminated[index] = self._looks[shown.board], paid or 0.0, discount == 0

    def save(self) -> dict[str, Array]:
        """Raise ValueError: a game on the pycolab engine has no state that can be restored."""
        raise ValueError("games on the pycolab engine cannot be saved")

    def _begin(self, index: int, observation: Array) -> None:
        self._games[index] = self._make(self._batch.level(index))
        shown, _, _ = self._games[index].its_showtime()
        observation[index] = self._looks[shown.board]


def looks(game: Game) -> Array:
    """Return the planes of every character code, uint8 [128, characters]."""
    planes = np.zeros((128, len(game.characters)), np.uint8)
    shown = {character: character for character in game.characters} | game.repaint
    for character, other in shown.items():
        planes[ord(character), game.characters.index(other)] = 1
    return planes


def find_game(name: str) -> Game:
    """Find the game with a short name. Raises ValueError with the available names."""
    if name not in GAMES:
        raise ValueError(f"no pycolab game of {name!r}; available: {', '.join(GAMES)}")
    return GAMES[name]
