"""Types of the arrays that environments exchange, zeroed states, and the error for invalid values."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

Observation: TypeAlias = Array | dict[str, "Observation"]  # A (nested) dict of arrays for foreign environments


class ContractError(ValueError):
    """Raised when an environment returns a value that contradicts its declarations; a new environment would too."""


def require(fits: object, returned: str, expected: str) -> None:
    """Raise ContractError with the actual and the expected value unless `fits`."""
    if not fits:
        raise ContractError(f"{returned}; expected {expected}")


def zeroed(kind: Any, num_envs: int, **fields: Any) -> Any:
    """Create a state of zeros, a NamedTuple of arrays [N, ...]. A field is int64 [N] unless `fields` contains its type,
    or (type, *shape); `random` is uint64, `over` and `solved` are bool."""
    types = {"random": np.uint64, "over": np.bool_, "solved": np.bool_} | fields
    forms = [types.get(name, np.int64) for name in kind._fields]
    forms = [form if isinstance(form, tuple) else (form,) for form in forms]
    return kind(*(np.zeros((num_envs, *shape), dtype) for dtype, *shape in forms))


def check_cell(name: str, cell: Any, allowed: Array) -> tuple[int, int]:
    """Return a cell of a level as (row, col). Raises ValueError unless it consists of two integers and `allowed`, bool
    [rows, cols], is set there."""
    values = np.asarray(cell)
    if values.shape != (2,) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} is {cell!r}; expected two integers, (row, col)")
    row, col = values.tolist()
    if not (0 <= row < len(allowed) and 0 <= col < len(allowed[0]) and allowed[row, col]):
        raise ValueError(f"{name} is {(row, col)}; allowed: a free cell (row, col) of {allowed.shape}")
    return row, col
