"""Names for the array types that worlds exchange."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

Observation: TypeAlias = Array | dict[str, "Observation"]
"""One array, or a (nested) dict of arrays for foreign environments."""


def allocate(shape: tuple[int, ...], dtype: Any) -> Array:
    """A zeroed array (a function of its own so that every buffer starts defined)."""
    return np.zeros(shape, dtype)
