"""Action masks: bool [N, A], the valid ones of the n actions of a Discrete space, or of the options of all choices of a
MultiDiscrete space, choice by choice."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .arrays import Array, ContractError

KEY = "action_mask"  # In `info` or a Dict observation


def flat_mask(name: str, mask: Any, size: int) -> Array:
    """Convert one environment's mask to bool [size]: `size` values, bool or 0 and 1, or one array for each choice.
    Raises ContractError with the name of the environment for other sizes and values."""
    try:
        values = mask.reshape(-1) if isinstance(mask, np.ndarray) else np.hstack(mask)
    except (TypeError, ValueError) as problem:
        raise ContractError(f"{KEY} of {name} is {mask!r}; expected {size} values, one for each action") from problem
    return flat_masks(name, values[None], size)[0]


def flat_masks(name: str, values: Array, size: int) -> Array:
    """Convert masks [N, size] of any numeric type to bool. Raises ContractError like `flat_mask`."""
    if values.shape[1:] != (size,):
        raise ContractError(f"{KEY} of {name} has {values[0].size} values; expected {size}, one for each action")
    mask = values.astype(np.bool_, copy=False)
    if (mask != values).any():
        raise ContractError(f"{KEY} of {name} contains {values[mask != values][0]}; allowed: 0 and 1")
    return mask


def check_masks(name: str, mask: Array, choices: Sequence[int]) -> None:
    """Raise ContractError unless every choice has a valid option in every environment of `mask` (bool [N, A])."""
    valid = np.logical_or.reduceat(mask, [0, *accumulate(choices[:-1])], 1)
    if not valid.all():
        environment, choice = np.argwhere(~valid)[0]
        where = f" for choice {choice}" if len(choices) > 1 else ""
        raise ContractError(f"{KEY} of {name} has no valid action{where} (environment {environment})")


def random_valid(mask: Array, choices: Sequence[int], rng: np.random.Generator) -> Array:
    """Sample valid actions uniformly: int64 [N], or [N, K] for K choices."""
    scores = np.where(mask, rng.random(mask.shape), -1.0)
    parts = [part.argmax(1) for part in np.split(scores, list(accumulate(choices[:-1])), 1)]
    return parts[0] if len(parts) == 1 else np.stack(parts, 1)
