"""Checks of the arguments that callers of the Python API give: ValueError names the argument and what is allowed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ...agents.specs import ChoiceSpec
from ...base.messages import check_integer, check_whole
from ...envs.foreign.spaces import is_text


def check_path(name: str, value: object) -> None:
    """Raise ValueError unless it is the path of a file or directory."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} is {value!r}; expected a path")


def check_trained(run: object, checkpoint: object, member: object, seed: object, env_args: object) -> None:
    """Raise ValueError for arguments that cannot mean a trained agent."""
    check_path("run", run)
    if not isinstance(checkpoint, str):
        check_whole("checkpoint", checkpoint, 0)
    check_integer("member", member, -1)
    check_whole("seed", seed, 0)
    check_parameters("env_args", env_args)


def check_parameters(name: str, value: Any) -> None:
    """Raise ValueError unless it is None or a dict with names as keys."""
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise ValueError(f"{name} is {value!r}; expected a dict of parameters by name")


def check_observation(space: spaces.Space[Any], given: Any, name: str = "observation") -> None:
    """Raise ValueError for numbers that an array of the space's type cannot hold, and for nan.

    Args:
        space: of one observation.
        given: one observation, or [B, ...] of them.
        name: what the message calls it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            if not (key in given if isinstance(given, Mapping) else isinstance(key, int) and key < len(given)):
                raise ValueError(f"{name} has no {key!r}; expected: {space}")
            check_observation(part, given[key], f"{name}[{key!r}]")
    elif not is_text(space):
        values = np.asarray(given)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"{name} is of {values.dtype}; expected numbers of {space}")
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise ValueError(f"{name} holds nan; expected numbers of {space}")
        if values.dtype != space.dtype and np.issubdtype(space.dtype, np.integer):
            with np.errstate(invalid="ignore"):
                lost = values.astype(space.dtype) != values
            if lost.any():
                raise ValueError(f"{name} holds {values[lost].flat[0]}; expected numbers of {space}")


def checked_action(spec: Any, action: Any, shape: tuple[int, ...]) -> Any:
    """`action` as an array [B] or [B, K], as the network numbers actions; ValueError for one that there is not."""
    try:
        values = np.asarray(action).reshape(shape)
    except ValueError as problem:
        raise ValueError(f"action is {action!r}; expected an array {list(shape)}") from problem
    if isinstance(spec, ChoiceSpec):
        choices = np.array(spec.choices)
        inside = values.dtype.kind in "iu" and ((values >= 0) & (values < choices)).all()
        allowed = "integers " + ", ".join(f"0..{n - 1}" for n in spec.choices)
    else:
        inside, allowed = values.dtype.kind in "iuf" and np.isfinite(values).all(), "finite numbers"
    if not inside:
        raise ValueError(f"action is {action!r}; allowed: {allowed}")
    return values
