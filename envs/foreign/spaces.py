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
from ..arrays import Array, ContractError, Observation

OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete and (nested) Dict or Tuple of these"
ACTIONS = "Discrete, MultiDiscrete and Box of floats"
MOST_ONE_HOT = 1_000_000  # Maximum total size of an observation's one-hot vectors


class ObservationForm(NamedTuple):
    """How to convert the observations of N environments to arrays for the agent."""

    space: spaces.Box | spaces.Dict  # Space of one environment for the agent
    write: Callable[[Any, Any], None]  # write(batched observations of the environment, arrays [N, ...] to fill)


class ActionForm(NamedTuple):
    """How to convert an agent's actions to those of the environment."""

    space: spaces.Discrete | spaces.MultiDiscrete | spaces.Box  # Space of one environment for the agent
    choices: Array | None  # int64 [K]: number of options of each choice; None for a Box.
    read: Callable[[Array], Array]  # [N, K], int64 in range or finite floats -> the batched actions of the environment


def observation_form(space: spaces.Space[Any], name: str) -> ObservationForm:
    """Return the form of an observation space. Raises ValueError naming the space if it is not supported."""
    if isinstance(space, spaces.Dict):
        return _dict_form(space, name)
    if isinstance(space, spaces.Tuple) and len(space):
        return _tuple_form(space, name)
    if isinstance(space, spaces.Box):
        return _box_form(space)
    if isinstance(space, spaces.MultiBinary):
        return ObservationForm(spaces.Box(0, 1, space.shape, np.float32), lambda values, out: np.copyto(out, values))
    if isinstance(space, spaces.Discrete):
        return _one_hot_form(space, np.array([space.n]), np.array([space.start]), name)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot_form(space, space.nvec.ravel(), space.start.ravel(), name)
    raise ValueError(f"{name} has the observation space {space}; supported: {OBSERVATIONS}")


def action_form(space: spaces.Space[Any], name: str) -> ActionForm:
    """Return the form of an action space. Raises ValueError naming the space if it is not supported."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _box_action_form(space)
    if isinstance(space, spaces.Discrete):
        choices, first, shape = np.array([space.n], np.int64), np.array([space.start]), ()
    elif isinstance(space, spaces.MultiDiscrete):
        choices, first, shape = space.nvec.astype(np.int64).ravel(), space.start.ravel(), space.shape
    else:
        raise ValueError(f"{name} has the action space {space}; supported: {ACTIONS}")

    def read(actions: Array) -> Array:
        return (actions + first).astype(space.dtype).reshape(len(actions), *shape)

    single = len(choices) == 1
    return ActionForm(spaces.Discrete(int(choices[0])) if single else spaces.MultiDiscrete(choices), choices, read)


def _box_action_form(space: spaces.Box) -> ActionForm:
    """Return the form of a Box: values with both bounds are scaled from -1..1 to low..high, the others are only clipped
    to their bound, if any."""
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    bounded = np.isfinite(low) & np.isfinite(high)
    middle = np.where(bounded, np.where(bounded, low, 0) / 2 + np.where(bounded, high, 0) / 2, 0.0)
    half = np.where(bounded, np.where(bounded, high, 0) / 2 - np.where(bounded, low, 0) / 2, 1.0)

    def read(actions: Array) -> Array:
        values = np.clip(middle + half * actions.astype(np.float64), low, high)
        return values.astype(space.dtype).reshape(len(actions), *space.shape)

    agent_low, agent_high = (np.where(bounded, side, edge) for side, edge in ((-1.0, low), (1.0, high)))
    return ActionForm(spaces.Box(agent_low.astype(np.float32), agent_high.astype(np.float32)), None, read)


def empty(space: spaces.Space[Any], num_envs: int) -> Observation:
    """Allocate zeroed arrays [num_envs, ...] for the space of an ObservationForm."""
    if isinstance(space, spaces.Dict):
        return {key: empty(part, num_envs) for key, part in space.spaces.items()}
    return np.zeros((num_envs, *(space.shape or ())), space.dtype)


def map_parts(function: Callable[..., Any], *values: Any) -> Any:
    """Apply `function` array by array to values of the same structure: (nested) dicts and tuples."""
    first = values[0]
    if isinstance(first, dict):
        return {key: map_parts(function, *(value[key] for value in values)) for key in first}
    if isinstance(first, tuple):
        return tuple(map_parts(function, *parts) for parts in zip(*values, strict=True))
    return function(*values)


def _box_form(space: spaces.Box) -> ObservationForm:
    dtype = np.uint8 if space.dtype == np.uint8 else np.float32
    shape = space.shape or (1,)
    low, high = (np.asarray(bound).astype(dtype).reshape(shape) for bound in (space.low, space.high))

    def write(values: Array, out: Array) -> None:
        out[...] = np.reshape(values, out.shape)

    return ObservationForm(spaces.Box(low, high, shape, dtype), write)


def _one_hot_form(space: spaces.Space[Any], sizes: Array, first: Array, name: str) -> ObservationForm:
    total = sum(int(size) for size in sizes)
    text = f"{name} has the observation space {space}, {total:,} values as one-hot; allowed: {MOST_ONE_HOT:,}"
    refuse(total > MOST_ONE_HOT, text)
    sizes, first = sizes.astype(np.int64), first.astype(np.int64)
    ends = np.cumsum(sizes)

    def write(values: Array, out: Array) -> None:
        indices = np.reshape(values, (len(out), -1)).astype(np.int64, copy=False) - first
        if ((indices < 0) | (indices >= sizes)).any():
            bad = int(np.argwhere((indices < 0) | (indices >= sizes))[0, 0])
            raise ContractError(f"{name} returned the observation {values[bad]}; observation_space is {space}")
        out[...] = 0
        np.put_along_axis(out, indices + (ends - sizes), 1, axis=1)

    return ObservationForm(spaces.Box(0, 1, (int(ends[-1]),), np.float32), write)


def _dict_form(space: spaces.Dict, name: str) -> ObservationForm:
    # Gymnasium's Text, and custom spaces such as MiniGrid's missions.
    text = [key for key, part in space.spaces.items() if part.dtype is not None and part.dtype.kind == "U"]
    if text:
        logging.getLogger(__name__).warning("%s: text is not supported, observation %s is dropped", name, text)
    forms = {key: observation_form(part, name) for key, part in space.spaces.items() if key not in text}
    refuse(not forms, f"{name} has the observation space {space}, all text; supported: {OBSERVATIONS}")

    def write(values: dict[str, Any], out: dict[str, Any]) -> None:
        for key, form in forms.items():
            form.write(values[key], out[key])

    return ObservationForm(spaces.Dict({key: form.space for key, form in forms.items()}), write)


def _tuple_form(space: "spaces.Tuple[Any]", name: str) -> ObservationForm:
    form = _dict_form(spaces.Dict({str(i): part for i, part in enumerate(space.spaces)}), name)

    def write(values: tuple[Any, ...], out: dict[str, Any]) -> None:
        form.write({str(i): part for i, part in enumerate(values)}, out)

    return ObservationForm(form.space, write)
