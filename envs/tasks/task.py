"""The contract of a supervised task: batches of sequences with queries, one random stream per sequence.

A batch is T steps of B sequences. The target of a step with a query is a class (or one class for each of K groups, such
as the bits of a vector). An ordinary task generates complete sequences for every batch. A stream continues from batch
to batch and marks where each sequence begins. Sequence b depends only on the seed, the part and its index.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...base.errors import check_range, refuse
from ..arrays import Array
from ..randomness import streams

NO_QUERY = -1  # The target of a step without a query
BLANK = -1  # The symbol of a step that shows nothing
PARTS = ("train", "valid", "test")


class Batch(NamedTuple):
    """T steps of B sequences."""

    inputs: Array  # float32 [T, B, D], or int64 [T, B] of symbols below D, BLANK for none
    targets: Array  # int64 [T, B, K]: classes, NO_QUERY without a query
    reset: Array  # bool [T, B]: a new sequence begins at this step


class Task:
    """B sequences of one task, with different streams for each seed and part ("train", "valid" or "test");
    `first_index` is the index of the first sequence in a larger batch. `set_up` receives the parameters."""

    inputs: int  # D: features of a step, or number of symbols
    symbols: ClassVar[bool] = False  # Whether inputs are symbols
    classes: int  # Number of classes
    groups: int = 1  # K: number of classes queried at once
    steps: int  # T
    stream: ClassVar[bool] = False  # Whether sequences continue from batch to batch
    chance: float  # Accuracy of the best guess without memory

    set_up: Callable[..., None]  # Check the parameters of the task and set the other attributes
    fill: Callable[[Batch], None]
    """Fill a batch whose inputs are 0 or BLANK, targets NO_QUERY, with reset set at step 0 (not for a stream)."""

    def __init__(
        self, num_sequences: int, *, seed: int = 0, part: str = "train", first_index: int = 0, **parameters: Any
    ) -> None:
        self.num_sequences, self.part = num_sequences, part
        self.random = streams(seed * len(PARTS) + PARTS.index(part), range(first_index, first_index + num_sequences))
        self.state = {"random": self.random}  # What `restore` overwrites
        self.set_up(**parameters)

    def next(self) -> Batch:
        """Return the next batch, in new arrays."""
        size = (self.steps, self.num_sequences)
        inputs = np.full(size, BLANK, np.int64) if self.symbols else np.zeros((*size, self.inputs), np.float32)
        reset = np.zeros(size, np.bool_)
        reset[0] = not self.stream
        batch = Batch(inputs, np.full((*size, self.groups), NO_QUERY, np.int64), reset)
        self.fill(batch)
        return batch

    def save(self) -> dict[str, Array]:
        """Return a copy of the state of all streams."""
        return {name: array.copy() for name, array in self.state.items()}

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Restore a state returned by `save` of a task with the same parameters."""
        for name, array in self.state.items():
            array[...] = saved[name]


def number_or_range(name: str, value: Any, low: float, high: float | None = None) -> tuple[float, float]:
    """Return the range of a parameter given as a number or as (smallest, largest), both inside low..high."""
    ends: Any = value if isinstance(value, tuple | list) else (value, value)
    refuse(len(ends) != 2, f"{name} is {value!r}; allowed: a number, or two: smallest, largest")
    for end in ends:
        check_range(name, end, low, high)
    return float(ends[0]), float(ends[1])
