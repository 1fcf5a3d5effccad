"""Checks of a custom environment before a run: one reset and one step; errors name the actual and expected results."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from ...base.messages import calling
from ..arrays import ContractError
from ..masks import KEY, flat_mask

OUTSIDE = (Path(__file__).parents[1], Path(gymnasium.__file__).parent, Path(np.__file__).parent)
"""Frames in these folders do not belong to the user."""


def require(fits: object, returned: str, expected: str) -> None:
    """Raise ContractError with the actual and the expected value unless `fits`."""
    if not fits:
        raise ContractError(f"{returned}; expected {expected}")


def check_spaces(env: Any, name: str, prefix: str = "") -> None:
    """Raise ContractError unless an environment declares its spaces. In a vector environment, the attributes'
    names begin with `prefix`."""
    for attribute in (f"{prefix}observation_space", f"{prefix}action_space"):
        result = getattr(env, attribute, None)
        text = f"{name}.{attribute} is {'nothing' if result is None else repr(result)}"
        require(isinstance(result, spaces.Space), text, "a gymnasium.spaces.Space, set in __init__")


STATISTICS = {"NormalizeObservation": "--normalize-observations", "NormalizeReward": "--normalize-returns"}
"""Gymnasium wrappers with their own statistics, and the flags that replace them."""
_ATTRIBUTES = {"obs_rms": "NormalizeObservation", "return_rms": "NormalizeReward"}
"""Attributes that contain these wrappers' statistics."""


def check_wrappers(env: Any, name: str) -> None:
    """Raise ContractError if an environment, or a vector environment or one of its environments (in any process), has
    a wrapper whose statistics differ between environments and are in no checkpoint."""
    names = list[str]()
    while isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        names += [kind.__name__ for kind in type(env).__mro__]
        env = env.env
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        names += [wrapper for key, wrapper in _ATTRIBUTES.items() if any(env.call("has_wrapper_attr", key))]
    for wrapper in STATISTICS.keys() & names:
        text = f"{name} is wrapped in {wrapper}, whose statistics differ between environments and are in no checkpoint"
        require(False, text, f"no such wrapper, and {STATISTICS[wrapper]}")


def check_behavior(env: Any, name: str, sample: Callable[[Any, Any], Any], shape: tuple[int, ...] = ()) -> None:
    """Reset an environment and step it once. ContractError names the method, its result and the expected result.

    Args:
        env: an environment, or a vector environment.
        sample: samples an action for the observation and the info of the reset.
        shape: shape of rewards and flags: (), or (N,) for a vector environment.
    """
    made = calling(f"{name}.reset", lambda: env.reset(seed=0), OUTSIDE)
    pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)
    require(pair, f"{name}.reset returned {_format(made)}", "(observation, info) with a dict as info")
    check_observation(env.observation_space, f"{name}.reset", made[0])
    env.action_space.seed(0)
    action = calling(f"{name}.action_space.sample", lambda: sample(*made), OUTSIDE)
    done = calling(f"{name}.step", lambda: env.step(action), OUTSIDE)
    is_old = isinstance(done, tuple | list) and len(done) == 4
    old = "; (observation, reward, done, info) is Gym's old form" if is_old else ""
    fields = f"(observation, reward, terminated, truncated, info){old}"
    require(isinstance(done, tuple) and len(done) == 5, f"{name}.step returned {_format(done)}", fields)
    observation, reward, *flags, info = done
    check_observation(env.observation_space, f"{name}.step", observation)
    ending, is_number = f" of shape {shape}" if shape else "", False
    with contextlib.suppress(TypeError, ValueError):
        is_number = not isinstance(reward, str) and np.isfinite(np.asarray(reward, np.float64)).all()
    fits = is_number and np.shape(reward) == shape
    require(fits, f"{name}.step returned the reward {_format(reward)}", f"a finite number{ending}")
    for flag, value in zip(("terminated", "truncated"), flags, strict=True):
        is_flag = isinstance(value, bool | np.bool_ | np.ndarray) and np.asarray(value).dtype == np.bool_
        fits = is_flag and np.shape(value) == shape
        require(fits, f"{name}.step returned {flag} = {_format(value)}", f"True or False{ending}")
    require(isinstance(info, dict), f"{name}.step returned info = {_format(info)}", "a dict")


def check_observation(space: spaces.Space[Any], method: str, observation: Any, entry: str = "") -> None:
    """Raise ContractError for an observation that arrays of `space` cannot store; `entry` is its path in a Dict."""
    where = f" in entry {entry!r}" if entry else ""
    if isinstance(space, spaces.Dict) and isinstance(observation, dict) and space.spaces.keys() <= observation.keys():
        for key, part in space.spaces.items():
            check_observation(part, method, observation[key], f"{entry}.{key}".removeprefix("."))
        return
    differs = f"the observation {_format(observation)}{where}", space
    if isinstance(space, spaces.Box):
        array = np.asarray(observation)
        if array.shape != space.shape:
            differs = f"an observation of shape {array.shape}{where}", space.shape
        elif not np.can_cast(array.dtype, space.dtype, "same_kind"):
            differs = f"an observation of {array.dtype}{where}", space.dtype
        else:
            return
    elif space.contains(observation):
        return
    raise ContractError(f"{method} returned {differs[0]}; observation_space is {differs[1]}")


def sampling_mask(env: Any, name: str, observation: Any, info: dict[str, Any]) -> Any:
    """Return the action mask of a reset in the form that `action_space.sample` accepts; None without a mask."""
    space = env.action_space
    observed = isinstance(env.observation_space, spaces.Dict) and KEY in env.observation_space.spaces
    values = observation[KEY] if observed else info.get(KEY)
    if values is not None and isinstance(space, spaces.Discrete):
        return flat_mask(name, values, int(space.n)).astype(np.int8)
    if values is not None and isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        flat = flat_mask(name, values, int(space.nvec.sum())).astype(np.int8)
        return tuple(np.split(flat, np.cumsum(space.nvec)[:-1]))
    return None


def _format(value: Any) -> str:
    """Format a value for a message: shortened, and for a tuple with its length."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{len(value)} values {text}" if isinstance(value, tuple) else text
