"""Arrays that environments exchange: types, zeroed states, the error for invalid values, the interface of a batch, and
action masks. A mask, bool [N, A], marks the valid ones of the n actions of a Discrete space, or of the options of
all choices of a MultiDiscrete space, choice by choice."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

Observation: TypeAlias = Array | dict[str, "Observation"]  # A (nested) dict of arrays for foreign environments

KEY = "action_mask"  # Of a mask, in `info` or a Dict observation


class BatchedEnvironment(Protocol):
    """N environments with NEXT_STEP autoreset, which write into the caller's arrays."""

    num_envs: int
    single_observation_space: spaces.Space[Any]  # A Box or a (nested) Dict of Boxes
    single_action_space: spaces.Space[Any]  # Discrete, MultiDiscrete or Box
    episode_fields: tuple[str, ...]  # Names of the values of `episode_facts`
    action_mask: Array | None  # bool [N, A]: the valid actions of the current step; None without masks
    replayable: bool  # Whether a level depends only on `streams`: uint64 [N], states of random number generators
    trusted: bool  # Whether `restore` may run code from a saved state

    def new_observation(self) -> Any:
        """Allocate zeroed observations of all environments: one array [N, ...], or a (nested) dict of arrays."""
        ...

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        """Start an episode in every environment and write all observations [N, ...]."""

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all environments with actions [N, ...]; write observations [N, ...], reward float32 [N], terminated and
        truncated bool [N]."""

    def cut(self, where: Array) -> None:
        """End the current episodes of environments `where` (bool [N]); their next step begins new ones."""

    def episode_facts(self, indices: Array) -> Array:
        """Return float32 [K, len(episode_fields)] for K environments whose episode has just ended; nan if unknown."""
        ...

    def save(self) -> dict[str, Array]:
        """Return the exact state. Raises ValueError if it cannot be saved."""
        ...

    def restore(self, saved: dict[str, Array]) -> None:
        """Continue from a state returned by `save`."""

    def close(self) -> None:
        """Close all environments."""


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


def fingerprint(name: str, params: Any) -> Array:
    """Hash of an environment's parameters, uint8 [16], without `first_index`, which only selects its graph."""
    summary = hashlib.sha256(name.encode())
    for value in _leaves(params):
        summary.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return np.frombuffer(summary.digest()[:16], np.uint8)


def _leaves(params: Any) -> Iterator[Any]:
    """Yield the values of (nested) NamedTuples, except `first_index` and the defaults of parameters added later."""
    defaults = params._field_defaults
    for name, value in params._asdict().items():
        if hasattr(value, "_asdict"):
            yield from _leaves(value)
        elif name != "first_index" and not (name in defaults and value == defaults[name]):
            yield value
