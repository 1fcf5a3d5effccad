"""Action masks of Gymnasium environments: `info["action_mask"]`, or the entry `action_mask` of a Dict observation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ..arrays import Array
from ..masks import KEY, flat_mask, flat_masks
from .check import require


class Masks:
    """Reader of the action masks of N environments, in `observation_space` or `info`; `choices` is the number of
    options of each choice [K], None for a Box, which has no masks."""

    def __init__(self, name: str, observation_space: spaces.Space[Any], choices: Array | None) -> None:
        self._name, self._size = name, None if choices is None else int(choices.sum())
        self._observed = isinstance(observation_space, spaces.Dict) and KEY in observation_space.spaces
        self._used = self._observed
        """Whether the environment has masks; a mask in `info` must already exist at the first reset."""

    def reset(self, observation: Any, infos: Sequence[Mapping[str, Any]]) -> Array | None:
        """Return bool [N, A] after a reset of all environments; None for an environment without masks."""
        self._used = self._observed or any(KEY in info for info in infos)
        return self.read(observation, infos, np.zeros(len(infos), np.bool_))

    def read(self, observation: Any, infos: Sequence[Mapping[str, Any]], ended: Array) -> Array | None:
        """Return bool [N, A] of the current step; None for an environment without masks. Where an episode `ended`
        (bool [N]), its action is ignored, and `info` needs no mask. Raises ContractError for a mask that is missing
        elsewhere, does not fit the action space, or first occurs after a step."""
        if not self._used:
            late = any(KEY in info for info in infos)
            require(not late, f"{self._name}.step returned an {KEY}, {self._name}.reset none", "both do")
            return None
        discrete = self._size is not None
        require(discrete, f"{self._name} has an {KEY} and Box actions", "Discrete or MultiDiscrete actions")
        size = self._size or 0
        if self._observed:
            values = observation[KEY]
            flat = np.concatenate(values, 1) if isinstance(values, tuple) else values.reshape(len(infos), -1)
            return flat_masks(self._name, flat, size)
        for i, info in enumerate(infos):
            without = f"{self._name} returned info without {KEY!r} (environment {i})"
            require(KEY in info or ended[i], without, "a mask at every step")
        every = np.ones(size, np.bool_)
        return np.stack([flat_mask(self._name, info[KEY], size) if KEY in info else every for info in infos])
