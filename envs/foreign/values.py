"""Values of third-party environments, converted to those of agents: observations, actions, infos, action masks.

Observations: a Box of uint8 stays; another Box (a scalar as one value) and MultiBinary become float32; Discrete and
MultiDiscrete become float32 one-hots, concatenated; a Dict or Tuple becomes a dict (keys "0", "1", ...) without text.
Actions: Discrete and MultiDiscrete become one-dimensional and begin at 0, a single choice is Discrete; a Box becomes a
one-dimensional Box of float32, -1..1 where the environment's has both bounds.
The fields of an episode are the same in every process: those in the environment's `episode_fields`, and `solved`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from ...base.errors import refuse
from ..arrays import KEY, Array, ContractError, flat_mask, flat_masks, require

MOST_ONE_HOT = 1_000_000  # Maximum total size of an observation's one-hot vectors
SOLVED = ("solved", "success", "is_success")  # Keys under which environments report success: the field `solved`
TAKEN = ("return", "length")  # Fields of every episode, which an environment cannot declare


def agent_space(space: spaces.Space[Any], name: str) -> spaces.Box | spaces.Dict:
    """Return the agent's observation space. Raises ValueError naming the space if it is not supported."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = space.spaces if isinstance(space, spaces.Dict) else {str(i): part for i, part in enumerate(space)}
        # Gymnasium's Text, and custom spaces such as MiniGrid's missions.
        text = [key for key, part in entries.items() if part.dtype is not None and part.dtype.kind == "U"]
        if text:
            logging.getLogger(__name__).warning("%s: text is not supported, observation %s is dropped", name, text)
        parts: dict[str, Any] = {k: agent_space(x, name) for k, x in entries.items() if k not in text}
        if parts:
            return spaces.Dict(parts)
    if isinstance(space, spaces.Box):
        dtype = np.uint8 if space.dtype == np.uint8 else np.float32
        shape = space.shape or (1,)
        low, high = (np.asarray(bound).astype(dtype).reshape(shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, shape, dtype)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.float32)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        total = int(_choices(space)[0].sum())
        text = f"{name} has the observation space {space}, {total:,} values as one-hot; allowed: {MOST_ONE_HOT:,}"
        refuse(total > MOST_ONE_HOT, text)
        return spaces.Box(0, 1, (total,), np.float32)
    supported = "Box, Discrete, MultiBinary, MultiDiscrete and (nested) Dict or Tuple of these"
    raise ValueError(f"{name} has the observation space {space}; supported: {supported}")


def write_observation(space: spaces.Space[Any], values: Any, out: Any, name: str) -> None:
    """Write batched observations of `space` to arrays [N, ...] of the agent's space, if they are in `space`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in out.items():
            index: Any = key if isinstance(space, spaces.Dict) else int(key)
            write_observation(space[index], values[index], part, name)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes, first = _choices(space)
        indices = np.reshape(values, (len(out), -1)).astype(np.int64) - first
        outside = ((indices < 0) | (indices >= sizes)).any(1)
        if outside.any():
            value = values[outside.argmax()]
            raise ContractError(f"{name} returned the observation {value}; observation_space is {space}")
        out[...] = 0
        np.put_along_axis(out, indices + (np.cumsum(sizes) - sizes), 1, axis=1)
    else:
        out[...] = np.reshape(values, out.shape)


class ActionForm(NamedTuple):
    """How to convert an agent's actions to those of the environment."""

    space: spaces.Discrete | spaces.MultiDiscrete | spaces.Box  # Space of one environment for the agent
    choices: Array | None  # int64 [K]: number of options of each choice; None for a Box.
    read: Callable[[Array], Array]  # actions [N, ...] of `space` -> the batched actions of the environment


def action_form(space: spaces.Space[Any], name: str) -> ActionForm:
    """Return the form of an action space. Raises ValueError naming the space if it is not supported."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _box_action_form(space)
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise ValueError(f"{name} has the action space {space}; supported: Discrete, MultiDiscrete and Box of floats")
    (choices, first), shape = _choices(space), space.shape or ()

    def read(actions: Array) -> Array:
        return (actions.reshape(len(actions), -1) + first).astype(space.dtype).reshape(len(actions), *shape)

    single = len(choices) == 1
    return ActionForm(spaces.Discrete(int(choices[0])) if single else spaces.MultiDiscrete(choices), choices, read)


def _box_action_form(space: spaces.Box) -> ActionForm:
    """Values with both bounds are scaled from -1..1 to low..high, others only clipped to their bound, if any."""
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):  # inf - inf
        middle, half = np.where(bounded, low / 2 + high / 2, 0.0), np.where(bounded, high / 2 - low / 2, 1.0)

    def read(actions: Array) -> Array:
        values = np.clip(middle + half * actions.astype(np.float64), low, high)
        return values.astype(space.dtype).reshape(len(actions), *space.shape)

    agent_low, agent_high = (np.where(bounded, side, edge) for side, edge in ((-1.0, low), (1.0, high)))
    return ActionForm(spaces.Box(agent_low.astype(np.float32), agent_high.astype(np.float32)), None, read)


def map_parts(function: Callable[..., Any], *values: Any) -> Any:
    """Apply `function` array by array to values of the same structure: (nested) dicts and tuples."""
    first = values[0]
    if isinstance(first, dict):
        return {key: map_parts(function, *(value[key] for value in values)) for key in first}
    if isinstance(first, tuple):
        return tuple(map_parts(function, *parts) for parts in zip(*values, strict=True))
    return function(*values)


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[Array, Array]:
    """Number of options of each choice, and the first option: int64 [K] each."""
    sizes, first = (space.n, space.start) if isinstance(space, spaces.Discrete) else (space.nvec, space.start)
    return np.asarray(sizes, np.int64).ravel(), np.asarray(first, np.int64).ravel()


class InfoVector(SyncVectorEnv):
    """A SyncVectorEnv that keeps every environment's `info` unchanged: Gymnasium merges the infos into arrays of the
    first value's type, so that 0.5 after an integer becomes 0."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.infos: list[Mapping[str, Any]] = [{}] * self.num_envs  # Of each environment's last step or reset
        self.at_step: Callable[[], None] = lambda: None

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        self.infos[env_num] = env_info
        self.at_step()
        return vector_infos


def episode_fields(env: Any, name: str) -> tuple[str, ...]:
    """Return `solved` and the fields that an environment or a wrapper declares."""
    try:
        declared = env.get_wrapper_attr("episode_fields") if isinstance(env, gymnasium.Env) else env.episode_fields
    except AttributeError:
        return (SOLVED[0],)
    wrong = not isinstance(declared, tuple | list) or set(TAKEN) & set(declared)
    refuse(wrong, f"{name}.episode_fields is {declared!r}; expected a tuple of keys of info, other than return, length")
    return (SOLVED[0], *(key for key in dict.fromkeys(declared) if key not in SOLVED))


def read_infos(infos: Iterable[Mapping[str, Any]], fields: tuple[str, ...]) -> Array:
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
    """Reader of the action masks of N environments, in the observation or `info`; `choices` [K] is the number of
    options of each choice, None for a Box."""

    def __init__(self, name: str, observation_space: spaces.Space[Any], choices: Array | None) -> None:
        self._name, self._size = name, None if choices is None else int(choices.sum())
        self._observed = isinstance(observation_space, spaces.Dict) and KEY in observation_space.spaces
        self._used = self._observed  # Whether there are masks; a mask in `info` must exist at the first reset

    def reset(self, observation: Any, infos: Sequence[Mapping[str, Any]]) -> Array | None:
        """As `read`, after a reset of all environments."""
        self._used = self._observed or any(KEY in info for info in infos)
        return self.read(observation, infos, np.zeros(len(infos), np.bool_))

    def read(self, observation: Any, infos: Sequence[Mapping[str, Any]], ended: Array) -> Array | None:
        """Return bool [N, A] of the current step; None for an environment without masks. Where an episode `ended`
        (bool [N]), `info` needs no mask. Raises ContractError for a missing, late or unsuitable mask."""
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
            returned = f"{self._name} returned info without {KEY!r} (environment {i})"
            require(KEY in info or ended[i], returned, "a mask at every step")
        every = np.ones(size, np.bool_)
        return np.stack([flat_mask(self._name, info[KEY], size) if KEY in info else every for info in infos])
