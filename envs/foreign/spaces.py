"""Spaces of third-party environments, converted to those of agents: Box observations (or dicts), discrete actions.

environment's observation              the agent's
Box of uint8                     the same
Box of anything else             float32; a scalar becomes an array of one value
MultiBinary                      float32
Discrete, MultiDiscrete          float32, one-hot (several are concatenated)
Dict                             a dict of these; text entries are dropped
Tuple                            a dict of these under "0", "1", ...

environment's action                   the agent's
Discrete                         Discrete from 0
MultiDiscrete                    one-dimensional MultiDiscrete from 0 (Discrete, if it is a single choice)
Box                              one-dimensional Box of float32: -1..1 where the environment's has bounds (with
                                 clipping), the same values where it has none
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ...base.errors import refuse
from ..arrays import Array, ContractError

OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete and (nested) Dict or Tuple of these"
ACTIONS = "Discrete, MultiDiscrete and Box of floats"
MOST_ONE_HOT = 1_000_000  # Maximum total size of an observation's one-hot vectors


def observation_space_of(space: spaces.Space[Any], name: str) -> spaces.Box | spaces.Dict:
    """Return the agent's observation space. Raises ValueError naming the space if it is not supported."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = space.spaces if isinstance(space, spaces.Dict) else {str(i): part for i, part in enumerate(space)}
        # Gymnasium's Text, and custom spaces such as MiniGrid's missions.
        text = [key for key, part in entries.items() if part.dtype is not None and part.dtype.kind == "U"]
        if text:
            logging.getLogger(__name__).warning("%s: text is not supported, observation %s is dropped", name, text)
        parts: dict[str, Any] = {k: observation_space_of(x, name) for k, x in entries.items() if k not in text}
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
    raise ValueError(f"{name} has the observation space {space}; supported: {OBSERVATIONS}")


def write_observation(space: spaces.Space[Any], values: Any, out: Any, name: str) -> None:
    """Write the environment's batched observations of `space` to arrays [N, ...] of the agent's space. Raises
    ContractError for a value outside the space."""
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
        raise ValueError(f"{name} has the action space {space}; supported: {ACTIONS}")
    (choices, first), shape = _choices(space), space.shape or ()

    def read(actions: Array) -> Array:
        return (actions.reshape(len(actions), -1) + first).astype(space.dtype).reshape(len(actions), *shape)

    single = len(choices) == 1
    return ActionForm(spaces.Discrete(int(choices[0])) if single else spaces.MultiDiscrete(choices), choices, read)


def _box_action_form(space: spaces.Box) -> ActionForm:
    """Return the form of a Box: values with both bounds are scaled from -1..1 to low..high, the others are only clipped
    to their bound, if any."""
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
