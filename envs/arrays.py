"""Names for the array types that environments exchange, zeroed state, and checks of what environments return."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

Observation: TypeAlias = Array | dict[str, "Observation"]
"""One array, or a (nested) dict of arrays for foreign environments."""


class ContractError(ValueError):
    """An environment returned what it does not declare. A new environment would do the same."""


def zeros_for(num_envs: int) -> Callable[..., Array]:
    """A maker of zeroed state: `zeros_for(N)(dtype, *shape)` is an array [N, *shape]."""

    def zeros(dtype: Any, *shape: int) -> Array:
        return np.zeros((num_envs, *shape), dtype)

    return zeros


def check_cell(name: str, cell: Any) -> tuple[int, int]:
    """The (row, col) that a level gives as a cell; ValueError unless it is two whole numbers."""
    numbers = np.asarray(cell)
    if numbers.shape != (2,) or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} is {cell!r}; expected two integers, (row, col)")
    return int(numbers[0]), int(numbers[1])
