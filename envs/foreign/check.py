"""Checks of a custom environment: errors name the actual and the expected result."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array

from ..arrays import ContractError

OUTSIDE = (Path(__file__).parents[1], Path(gymnasium.__file__).parent, Path(np.__file__).parent)
"""Frames in these folders do not belong to the user."""
STATISTICS = {
    "obs_rms": ("NormalizeObservation", "--normalize-observations"),
    "return_rms": ("NormalizeReward", "--normalize-returns"),
}
"""Gymnasium wrappers with their own statistics, by the attribute that contains them, and the flags to use instead."""


def require(fits: object, returned: str, expected: str) -> None:
    """Raise ContractError with the actual and the expected value unless `fits`."""
    if not fits:
        raise ContractError(f"{returned}; expected {expected}")


def check_wrappers(env: Any, name: str) -> None:
    """Raise ContractError if an environment, or a vector environment or one of its environments (in any process), has
    a wrapper whose statistics differ between environments and are in no checkpoint."""
    attributes = set[str]()
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        attributes |= vars(env).keys()
        env = env.env
    for attribute, (wrapper, flag) in STATISTICS.items():
        parts = env.call("has_wrapper_attr", attribute) if isinstance(env, SyncVectorEnv | AsyncVectorEnv) else ()
        text = f"{name} is wrapped in {wrapper}, whose statistics differ between environments and are in no checkpoint"
        require(attribute not in attributes and not any(parts), text, f"no such wrapper, and {flag}")


def check_observation(space: spaces.Space[Any], method: str, observation: Any) -> None:
    """Raise ContractError for an observation that arrays of `space` cannot store."""
    try:
        concatenate(space, [observation], create_empty_array(space))
    except (TypeError, ValueError, LookupError) as problem:
        returned = f"{method} returned an observation that does not fit observation_space"
        raise ContractError(f"{returned}, {space}: {problem}") from problem
