"""Values and action masks that third-party environments report in `info`, or masks in the observation.

The fields of an episode are the same in every process: those in the environment's `episode_fields`, and `solved`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from ...base.errors import refuse
from ..arrays import Array
from ..masks import KEY, flat_mask, flat_masks
from .check import require

SOLVED = ("solved", "success", "is_success")
"""Keys under which environments report whether the goal was reached; all of them become the field `solved`."""
TAKEN = ("return", "length")  # Fields of every episode, which an environment cannot declare


class InfoVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv that keeps every environment's `info` unchanged: Gymnasium merges the infos into arrays of the
    first value's type, so that 0.5 after an integer becomes 0."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.infos: list[Mapping[str, Any]] = [{}] * self.num_envs
        """The `info` that each environment's last step or reset returned."""
        self.at_step: Callable[[], None] = lambda: None  # Called after the step or reset of each environment

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        self.infos[env_num] = env_info
        self.at_step()
        return vector_infos


def episode_fields(env: Any, name: str) -> tuple[str, ...]:
    """Return `solved` and the fields that an environment or a wrapper declares. Raises ValueError for an invalid
    declaration."""
    try:
        declared = env.get_wrapper_attr("episode_fields") if isinstance(env, gymnasium.Env) else env.episode_fields
    except AttributeError:
        return (SOLVED[0],)
    wrong = not isinstance(declared, tuple | list) or set(TAKEN) & set(declared)
    refuse(wrong, f"{name}.episode_fields is {declared!r}; expected a tuple of keys of info, other than return, length")
    return (SOLVED[0], *(key for key in dict.fromkeys(declared) if key not in SOLVED))


def read(infos: Iterable[Mapping[str, Any]], fields: tuple[str, ...]) -> Array:
    """Return float32 [K, len(fields)]: values from each `info`, nan if missing, not finite or not a single number."""
    rows = [[_solved(info) if key == SOLVED[0] else _number(info.get(key)) for key in fields] for info in infos]
    return np.array(rows, np.float32).reshape(-1, len(fields))


def _solved(info: Mapping[str, Any]) -> float:
    """Return whether the goal was reached: 1 if the reported value is at least 1, else 0; nan if none is reported."""
    value = next((_number(info[key]) for key in SOLVED if key in info), np.nan)
    return value if np.isnan(value) else float(value >= 1)


def _number(value: Any) -> float:
    array = np.asarray(value) if isinstance(value, int | float | np.generic | np.ndarray) else np.array([])
    if array.size != 1 or array.dtype.kind not in "biuf":
        return np.nan
    with np.errstate(over="ignore"):
        number = float(array.astype(np.float32).item())
    return number if np.isfinite(number) else np.nan


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
