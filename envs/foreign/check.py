"""One reset and one step of a user's own world, before a run begins: which method returned what, and what was to be."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ...base.messages import calling

OUTSIDE = (Path(__file__).parents[1], Path(gymnasium.__file__).parent, Path(np.__file__).parent)
"""Frames in these places are not the user's own."""


def check_spaces(env: Any, name: str) -> None:
    """Raise ValueError unless an environment says what it shows and takes."""
    for attribute in ("observation_space", "action_space"):
        found = getattr(env, attribute, None)
        if not isinstance(found, spaces.Space):
            said = "nothing" if found is None else repr(found)
            raise ValueError(f"{name}.{attribute} is {said}; expected a gymnasium.spaces.Space, set in __init__")


def check_behaviour(env: Any, name: str) -> None:
    """Reset an environment and step it once; ValueError names the method, what it returned and what was expected."""
    made = calling(f"{name}.reset", lambda: env.reset(seed=0), OUTSIDE)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], dict):
        raise ValueError(f"{name}.reset returned {_shown(made)}; expected (observation, info) with a dict as info")
    _check_observation(env, f"{name}.reset", made[0])
    env.action_space.seed(0)
    action = calling(f"{name}.action_space.sample", env.action_space.sample, OUTSIDE)
    done = calling(f"{name}.step", lambda: env.step(action), OUTSIDE)
    fields = "(observation, reward, terminated, truncated, info)"
    if not isinstance(done, tuple) or len(done) != 5:
        old = "; (observation, reward, done, info) is Gym's old form" if _length(done) == 4 else ""
        raise ValueError(f"{name}.step returned {_shown(done)}; expected {fields}{old}")
    observation, reward, terminated, truncated, info = done
    _check_observation(env, f"{name}.step", observation)
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


def _check_observation(env: Any, method: str, observation: Any) -> None:
    space = env.observation_space
    if isinstance(space, spaces.Box):
        shape = getattr(observation, "shape", None) or np.shape(observation)
        if shape != space.shape:
            raise ValueError(f"{method} returned an observation of shape {shape}; observation_space says {space.shape}")
    elif not space.contains(observation):
        raise ValueError(f"{method} returned the observation {_shown(observation)}; observation_space is {space}")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple | list) else -1


def _shown(value: Any) -> str:
    """A value for a message: short, and of tuples their length."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{len(value)} values {text}" if isinstance(value, tuple) else text
