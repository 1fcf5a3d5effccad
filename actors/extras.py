"""Extras: inputs of losses and of a privileged critic that are hidden from the policy, one array per step."""

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..agents.agent import MAP, PRIVILEGED
from ..agents.prediction import MapSpec
from ..agents.values import map_leaves
from ..base.errors import EngramError, calling, library_errors, refuse
from ..envs.arrays import BatchedEnvironment
from ..envs.foreign.batch import OUTSIDE
from ..envs.parts import SIDE, around

PLAYER, NOVELTY = "player", "novelty"  # Names of the extras for a player's actions and for novelty within the episode


class Player(Protocol):
    """Scripted player of N environments: a class whose only argument is the batch of environments. It may read the
    batch, but should base its actions only on information in the observations of this episode. The optional methods
    `save() -> dict` (plain values and arrays) and `restore(saved)` let a resumed run continue exactly."""

    def act(self, observation: Any, first: NDArray[np.bool_]) -> NDArray[Any]:
        """Return actions [N, ...] for read-only observations [N, ...], regardless of the actions actually taken before;
        `first` (bool [N]) marks where an episode begins."""
        ...


def make_player(name: str, batch: BatchedEnvironment) -> Player:
    """Create the player `module:Class` for a batch of environments. Raises EngramError."""
    module, _, attribute = name.partition(":")
    with library_errors(f"cannot load player {name!r}", ImportError, AttributeError):
        imported = calling(f"importing {module}", partial(importlib.import_module, module), OUTSIDE, (ImportError,))
        made = getattr(imported, attribute)
    player = calling(f"cannot make player {name!r}: __init__", lambda: made(batch), OUTSIDE, (ValueError,))
    refuse(not hasattr(player, "act"), f"player {name!r} has no method act(observation, first)")
    return player


def privileged_size(env: str, batch: BatchedEnvironment) -> int:
    """Number of privileged values of an environment. Raises EngramError if there are none."""
    allowed = f"'history', or an environment whose Dict observation has a vector {PRIVILEGED!r}"
    size: int = getattr(batch, "privileged_size", 0)
    if isinstance(entry := _entry(batch, PRIVILEGED), spaces.Box) and len(entry.shape) == 1:
        size = entry.shape[0]
    refuse(not size, f"critic is 'privileged', but {env} has no privileged information; allowed: {allowed}")
    return size


def map_spec(env: str, batch: BatchedEnvironment) -> MapSpec:
    """Describe the map of an environment. Raises EngramError if it has none."""
    if classes := getattr(batch, "map_classes", ()):
        return MapSpec(SIDE, SIDE, classes)
    entry = _entry(batch, MAP)
    if isinstance(entry, spaces.Box) and entry.dtype == np.uint8 and len(entry.shape) == 3:
        return MapSpec(*entry.shape[:2], tuple(int(most) for most in entry.high.max((0, 1))))
    raise EngramError(
        f"predict is 'map', but {env} has no map; allowed: observation, reward, or an environment whose Dict "
        f"observation has an entry {MAP!r}, uint8 [rows, columns, layers]: 0 if unseen in this episode, else 1 + class"
    )


def _entry(batch: BatchedEnvironment, name: str) -> spaces.Space[Any] | None:
    space = batch.single_observation_space
    return space.spaces.get(name) if isinstance(space, spaces.Dict) else None


class Extras:
    """Extras of a batch of environments.

    Args:
        names: extras that the agent reads; with Dict observations they are entries of the observation.
        player: name of the imitated player; "" without one.
        novelty: whether to add NOVELTY: 1 at a step whose map cell (or observation, in environments without a map) is
            new in the episode, else 0; 0 at the first step.
    """

    def __init__(self, batch: Any, names: Sequence[str], player: str, novelty: bool = False) -> None:
        self._batch, self._name, count = batch, player, batch.num_envs
        self._player = make_player(player, batch) if player else None
        # Digests of the cells or observations visited in each environment's current episode
        self._visited: list[set[int]] | None = [set() for _ in range(count)] if novelty else None
        self._maps: NDArray[np.uint8] | None = None  # Maps of the whole environment, [N, rows, columns, layers]
        self._kinds: dict[str, tuple[tuple[int, ...], type]] = {}  # Shape and type of each extra
        if PRIVILEGED in names and (size := getattr(batch, "privileged_size", 0)):
            self._kinds[PRIVILEGED] = (size,), np.float32
        if novelty:
            self._kinds[NOVELTY] = (), np.float32
        if (novelty or MAP in names) and (map_shape := getattr(batch, "map_shape", None)) is not None:
            self._maps = np.zeros((count, *map_shape, len(batch.map_classes)), np.uint8)
            if MAP in names:
                self._kinds[MAP] = (SIDE, SIDE, len(batch.map_classes)), np.uint8
        if player:
            self._kinds[PLAYER] = batch.single_action_space.shape or (), np.int64

    def arrays(self) -> dict[str, NDArray[Any]] | None:
        """Allocate arrays [N, ...] for the extras of a step; None without extras."""
        count = self._batch.num_envs
        return {name: np.zeros((count, *shape), kind) for name, (shape, kind) in self._kinds.items()} or None

    def write(self, extras: Mapping[str, NDArray[Any]] | None, observation: Any, first: NDArray[np.bool_]) -> None:
        """Write the extras of a step; `first` (bool [N]) marks where observations [N, ...] begin episodes."""
        if extras is None:
            return
        if PRIVILEGED in extras:
            extras[PRIVILEGED][...] = self._batch.privileged()
        shown: Any = observation
        if self._maps is not None:
            self._maps[first] = 0
            shown = self._batch.mark_seen(self._maps)
            if MAP in extras:
                extras[MAP][...] = around(self._maps, shown)
        if self._visited is not None:
            for i, digest in enumerate(_digests(shown, self._batch.num_envs)):
                visited = self._visited[i]
                if first[i]:
                    visited.clear()
                extras[NOVELTY][i] = not first[i] and digest not in visited
                visited.add(digest)
        if self._player is not None:
            actions = np.asarray(self._player.act(observation, first))
            if actions.shape != (expected := extras[PLAYER].shape):
                raise ValueError(f"player {self._name!r} returned actions {actions.shape}; expected {expected}")
            extras[PLAYER][...] = actions

    def save(self) -> dict[str, Any]:
        player = self._player.save() if hasattr(self._player, "save") else None  # pyright: ignore
        saved = {"player": player, "seen": None if self._maps is None else self._maps.copy()}
        if self._visited is not None:
            saved["visited"] = [np.array(sorted(digests), np.uint64) for digests in self._visited]
        return saved

    def restore(self, saved: dict[str, Any]) -> None:
        if hasattr(self._player, "restore") and saved["player"] is not None:
            self._player.restore(saved["player"])  # pyright: ignore
        if self._maps is not None:
            self._maps[...] = saved["seen"]
        if self._visited is not None:
            self._visited = [set(digests.tolist()) for digests in saved["visited"]]


def _digests(values: Any, count: int) -> list[int]:
    """64-bit digest of each environment's part of `values` [N, ...], an array or a nested dict of arrays."""
    leaves: list[NDArray[Any]] = []
    map_leaves(lambda leaf: leaves.append(np.ascontiguousarray(leaf)), values)
    rows = (b"".join(leaf[i].tobytes() for leaf in leaves) for i in range(count))
    return [int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little") for row in rows]
