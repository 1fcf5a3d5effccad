"""Arrays that learning reads and the agent does not act on, one of each per step: an imitated player's actions."""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..base.messages import calling
from ..envs.foreign.check import OUTSIDE

PLAYER = "player"
"""Name of a player's actions among the extras."""


class Player(Protocol):
    """A scripted player of N environments: a class whose only argument is the batch of environments.

    It may read the batch, and should base its actions on no more than the observations of this episode contain.
    Optional `save() -> dict` and `restore(saved)`, of plain values and arrays, let a resumed run continue exactly.
    """

    def act(self, observation: Any, first: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions [N, ...] for observations [N, ...], whatever action was taken before.

        Args:
            observation: arrays that must not be changed.
            first: bool [N], where an episode begins with this observation.
        """
        ...


def make_player(name: str, batch: Any) -> Player:
    """The player `module:Class` for a batch of environments. Raises ValueError."""
    module, _, attribute = name.partition(":")
    try:
        imported = calling(f"importing {module}", partial(importlib.import_module, module), OUTSIDE, (ImportError,))
        made = getattr(imported, attribute)
    except (ImportError, AttributeError) as problem:
        raise ValueError(f"cannot load player {name!r}: {problem}") from problem
    player = calling(f"cannot make player {name!r}: __init__", lambda: made(batch), OUTSIDE, (ValueError,))
    if not callable(getattr(player, "act", None)):
        raise ValueError(f"player {name!r} has no method act(observation, first)")
    return player


class Extras:
    """The extras of a batch of environments.

    Args:
        batch: the environments.
        player: name of the imitated player; "" without one.
    """

    def __init__(self, batch: Any, player: str) -> None:
        self._batch, self._name = batch, player
        self._player = make_player(player, batch) if player else None

    def arrays(self) -> dict[str, NDArray[Any]] | None:
        """New arrays [N, ...] for the extras of a step; None if there are none."""
        if self._player is None:
            return None
        space: spaces.Space[Any] = self._batch.single_action_space
        kind = np.float32 if isinstance(space, spaces.Box) else np.int64
        return {PLAYER: np.zeros((self._batch.num_envs, *(space.shape or ())), kind)}

    def write(self, extras: Mapping[str, NDArray[Any]] | None, observation: Any, first: NDArray[np.bool_]) -> None:
        """Write the extras of a step, whose observations [N, ...] begin episodes where `first` (bool [N]) is set."""
        if self._player is None or extras is None:
            return
        actions = np.asarray(self._player.act(observation, first))
        if actions.shape != extras[PLAYER].shape:
            raise ValueError(f"player {self._name!r} returned actions {actions.shape}; expected {extras[PLAYER].shape}")
        extras[PLAYER][...] = actions

    def save(self) -> Any:
        """The player's state; None if it has none."""
        return self._player.save() if hasattr(self._player, "save") else None  # pyright: ignore

    def restore(self, saved: Any) -> None:
        """Continue from a state made by `save`."""
        if hasattr(self._player, "restore") and saved is not None:
            self._player.restore(saved)  # pyright: ignore
