"""Types of the arrays that environments exchange, zeroed states, and the error for invalid values."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array: TypeAlias = NDArray[Any]

Observation: TypeAlias = Array | dict[str, "Observation"]
"""One array, or a (nested) dict of arrays for foreign environments."""


class ContractError(ValueError):
    """Raised when an environment returns a value that contradicts its declarations; a new environment would too."""


def zeroed(kind: Callable[..., T], num_envs: int, **fields: Any) -> T:
    """Create a state of zeros, a NamedTuple of arrays [N, ...]. A field is int64 [N] unless `fields` contains its type,
    or (type, *shape); `random` is uint64, `over` and `solved` are bool."""
    types = {"random": np.uint64, "over": np.bool_, "solved": np.bool_} | fields
    forms = [types.get(name, np.int64) for name in inspect.signature(kind).parameters]
    forms = [form if isinstance(form, tuple) else (form,) for form in forms]
    return kind(*(np.zeros((num_envs, *shape), dtype) for dtype, *shape in forms))


def check_cell(name: str, cell: Any) -> tuple[int, int]:
    """Return a cell of a level as (row, col). Raises ValueError unless it consists of two integers."""
    values = np.asarray(cell)
    if values.shape != (2,) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} is {cell!r}; expected two integers, (row, col)")
    return int(values[0]), int(values[1])
