"""One reset and one step of a custom environment before a run: what each method returned, and what was expected."""

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
"""Frames in these places are not the user's own."""


def check_spaces(env: Any, name: str, prefix: str = "") -> None:
    """Raise ValueError unless an environment declares its spaces; of a vector environment they begin with `prefix`."""
    for attribute in (f"{prefix}observation_space", f"{prefix}action_space"):
        result = getattr(env, attribute, None)
        if not isinstance(result, spaces.Space):
            text = "nothing" if result is None else repr(result)
            raise ValueError(f"{name}.{attribute} is {text}; expected a gymnasium.spaces.Space, set in __init__")


STATISTICS = {"NormalizeObservation": "--normalize-observations", "NormalizeReward": "--normalize-returns"}
"""Wrappers of Gymnasium with statistics of their own, and the flags that replace them."""


_ATTRIBUTES = {"obs_rms": "NormalizeObservation", "return_rms": "NormalizeReward"}
"""What these wrappers keep their statistics in."""


def check_wrappers(env: Any, name: str) -> None:
    """Raise ValueError for a wrapper whose statistics differ between environments and are in no checkpoint. Also for a
    vector environment with such a wrapper, or whose environments have one, in whichever process."""
    while isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        for each in type(env).__mro__:
            _refuse(each.__name__, name)
        env = env.env
    if isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        for attribute, wrapper in _ATTRIBUTES.items():
            if any(env.call("has_wrapper_attr", attribute)):
                _refuse(wrapper, name)


def _refuse(wrapper: str, name: str) -> None:
    if wrapper in STATISTICS:
        raise ValueError(
            f"{name} is wrapped in {wrapper}, whose statistics differ between environments and are in no "
            f"checkpoint; allowed: without it, and {STATISTICS[wrapper]}"
        )


def check_behavior(env: Any, name: str) -> None:
    """Reset an environment and step it once; ValueError names the method, what it returned and what was expected."""
    made = calling(f"{name}.reset", lambda: env.reset(seed=0), OUTSIDE)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], dict):
        raise ValueError(f"{name}.reset returned {_shown(made)}; expected (observation, info) with a dict as info")
    check_observation(env.observation_space, f"{name}.reset", made[0])
    env.action_space.seed(0)
    mask = _sampling_mask(env, name, *made)
    action = calling(f"{name}.action_space.sample", lambda: env.action_space.sample(mask), OUTSIDE)
    done = calling(f"{name}.step", lambda: env.step(action), OUTSIDE)
    fields = "(observation, reward, terminated, truncated, info)"
    if not isinstance(done, tuple) or len(done) != 5:
        old = "; (observation, reward, done, info) is Gym's old form" if _length(done) == 4 else ""
        raise ValueError(f"{name}.step returned {_shown(done)}; expected {fields}{old}")
    observation, reward, terminated, truncated, info = done
    check_observation(env.observation_space, f"{name}.step", observation)
    try:
        number = np.ndim(reward) == 0 and not isinstance(reward, str) and np.isfinite(float(reward))
    except (TypeError, ValueError):
        number = False
    if not number:
        raise ValueError(f"{name}.step returned the reward {reward!r}; expected a finite number")
    for word, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}.step returned {word} = {value!r}; expected True or False")
    if not isinstance(info, dict):
        raise ValueError(f"{name}.step returned info = {_shown(info)}; expected a dict")


def check_observation(space: spaces.Space[Any], method: str, observation: Any, entry: str = "") -> None:
    """Raise ContractError for an observation that arrays of `space` cannot store; `entry` is its path in a Dict."""
    place = f" in entry {entry!r}" if entry else ""
    if isinstance(space, spaces.Dict) and isinstance(observation, dict) and space.spaces.keys() <= observation.keys():
        for key, part in space.spaces.items():
            check_observation(part, method, observation[key], f"{entry}.{key}".removeprefix("."))
    elif not isinstance(space, spaces.Box):
        if not space.contains(observation):
            text = f"{method} returned the observation {_shown(observation)}{place}"
            raise ContractError(f"{text}; observation_space is {space}")
    else:
        array = np.asarray(observation)
        for returned, declared, fits in (
            (f"shape {array.shape}", space.shape, array.shape == space.shape),
            (array.dtype, space.dtype, np.can_cast(array.dtype, space.dtype, "same_kind")),
        ):
            if not fits:
                raise ContractError(
                    f"{method} returned an observation of {returned}{place}; observation_space is {declared}"
                )


def _sampling_mask(env: Any, name: str, observation: Any, info: dict[str, Any]) -> Any:
    """The action mask of a reset in the form that `action_space.sample` takes, or None."""
    space = env.action_space
    observed = isinstance(env.observation_space, spaces.Dict) and KEY in env.observation_space.spaces
    values = observation[KEY] if observed else info.get(KEY)
    if values is not None and isinstance(space, spaces.Discrete):
        return flat_mask(name, values, int(space.n)).astype(np.int8)
    if values is not None and isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        flat = flat_mask(name, values, int(space.nvec.sum())).astype(np.int8)
        return tuple(np.split(flat, np.cumsum(space.nvec)[:-1]))
    return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple | list) else -1


def _shown(value: Any) -> str:
    """A value for a message: short, and of tuples their length."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{len(value)} values {text}" if isinstance(value, tuple) else text
