"""Values that `info` of a third-party environment reports at the last step of an episode.

The fields are the same in every process: those in the environment's `episode_fields`, and `solved`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from ..arrays import Array
from .check import require

SOLVED = ("solved", "success", "is_success")
"""Keys under which environments report whether the goal was reached; all of them become the field `solved`."""
TAKEN = ("return", "length")  # Fields of every episode, which an environment cannot declare
_LARGEST = float(np.finfo(np.float32).max)


class InfoVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv that keeps every environment's `info` unchanged.

    Gymnasium merges the infos into arrays of the first value's type: 0.5 after an integer becomes 0. An `info` that
    is not a dict raises a ContractError with the environment's name.
    """

    def __init__(self, *args: Any, name: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name
        self.infos: list[Mapping[str, Any]] = [{}] * self.num_envs
        """The `info` that each environment's last step or reset returned."""
        self.at_step: Callable[[], None] = lambda: None  # Called after the step or reset of each environment

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if type(env_info) is not dict:
            required = isinstance(env_info, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
            require(required, f"{self._name} returned info = {env_info!r}", "a dict")
        self.infos[env_num] = env_info
        self.at_step()
        return vector_infos


def episode_fields(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], name: str) -> tuple[str, ...]:
    """Return `solved` and the fields that the environment or a wrapper declares. Raises ValueError for an invalid
    declaration."""
    inner: Any = env.unwrapped
    of: Any = inner.envs[0] if type(inner) is SyncVectorEnv else inner if isinstance(env, VectorEnv) else env
    try:
        declared: Any = of.get_wrapper_attr("episode_fields") if isinstance(of, gymnasium.Env) else of.episode_fields
    except AttributeError:
        return (SOLVED[0],)
    fits = isinstance(declared, tuple | list) and all(isinstance(key, str) and key not in TAKEN for key in declared)
    require(fits, f"{name}.episode_fields is {declared!r}", f"a tuple of keys of info, other than {', '.join(TAKEN)}")
    return (SOLVED[0], *(key for key in dict.fromkeys(declared) if key not in SOLVED))


def read(infos: Iterable[Mapping[str, Any]], fields: tuple[str, ...]) -> Array:
    """Return float32 [K, len(fields)]: values from each `info`, nan if missing, not finite or not a single number."""
    rows = [[_read_solved(info) if key == SOLVED[0] else _number(info.get(key)) for key in fields] for info in infos]
    return np.array(rows, np.float32).reshape(-1, len(fields))


def _read_solved(info: Mapping[str, Any]) -> float:
    """Return whether the goal was reached: 1 if the reported value is at least 1, else 0; nan if none is reported."""
    value = next((_number(info[key]) for key in SOLVED if key in info), np.nan)
    return value if np.isnan(value) else float(value >= 1)


def _number(value: Any) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return np.nan
    return float(value) if -_LARGEST <= value <= _LARGEST else np.nan
