"""Names for the array types that environments exchange, zeroed state, and checks of what environments return."""

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
    """An environment returned a value that contradicts its declarations. A new environment would do the same."""


def zeroed(kind: Callable[..., T], num_envs: int, **fields: Any) -> T:
    """A state of zeros, a NamedTuple of arrays [N, ...]: a field is int64 [N] unless `fields` has its type, or (type,
    *shape); `random` is uint64, `over` and `solved` are bool."""
    types = {"random": np.uint64, "over": np.bool_, "solved": np.bool_} | fields
    forms = [types.get(name, np.int64) for name in inspect.signature(kind).parameters]
    forms = [form if isinstance(form, tuple) else (form,) for form in forms]
    return kind(*(np.zeros((num_envs, *shape), dtype) for dtype, *shape in forms))


def check_cell(name: str, cell: Any) -> tuple[int, int]:
    """The cell (row, col) of a level. Raises ValueError unless it is two integers."""
    numbers = np.asarray(cell)
    if numbers.shape != (2,) or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} is {cell!r}; expected two integers, (row, col)")
    return int(numbers[0]), int(numbers[1])
