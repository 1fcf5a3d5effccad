"""The contract of a supervised task: batches of sequences with queries, one random stream per sequence. Also the table
of all tasks, tasks.toml, and their construction by name.

A batch is T steps of B sequences. The target of a step with a query is a class (or one class for each of K groups, such
as the bits of a vector). An ordinary task generates complete sequences for every batch. A stream continues from batch
to batch and marks where each sequence begins. Sequence b depends only on the seed, the part and its index.
"""

import importlib
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...base.errors import check_keys, check_name, check_range, refuse
from ..arrays import Array
from ..randomness import streams

NO_QUERY = -1  # The target of a step without a query
BLANK = -1  # The symbol of a step that shows nothing
PARTS = ("train", "valid", "test")


class Batch(NamedTuple):
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


@dataclass(frozen=True)
class Entry:
    """One task."""

    family: str  # Source of the experiment
    place: str  # Class and its module in envs/tasks, as module:Class
    about: str  # The task, in one line
    published: str = "-"  # Published results, with the size of the models; "-" if there are none
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Parameters that define this task
    test: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Parameters that differ in the test
    curve: Sequence[Any] | None = None  # The parameter that a test varies, and its values
    beyond: bool = False  # Whether the curve extends beyond the training range; otherwise values above it are omitted
    twin: bool = False  # Whether there is a memory-free twin, `<name>-twin`


_TABLE = tomllib.loads(Path(__file__).with_name("tasks.toml").read_text("utf-8"))
TASKS = {name: Entry(**values) for name, values in _TABLE.items()}


def task_names() -> list[str]:
    return [*TASKS, *(f"{name}-twin" for name, entry in TASKS.items() if entry.twin)]


def find_task(name: str) -> tuple[Entry, dict[str, Any]]:
    """Return a task and the parameters that its name implies. Raises ValueError with the nearest names."""
    check_name("task", name, task_names())
    entry = TASKS.get(name) or TASKS[name.removesuffix("-twin")]
    return entry, {**entry.parameters, **({} if name in TASKS else {"twin": True})}


def task_class(entry: Entry) -> type[Task]:
    module, _, name = entry.place.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def task_parameters(entry: Entry) -> dict[str, inspect.Parameter]:
    _, *parameters = inspect.signature(task_class(entry).set_up).parameters.values()  # the first is self
    return {parameter.name: parameter for parameter in parameters}


def make_task(
    name: str, num_sequences: int, parameters: Mapping[str, Any] | None = None, *, seed: int = 0, part: str = "train"
) -> Task:
    """Make a task by name. Raises ValueError with the nearest valid names for an unknown task or parameter."""
    entry, fixed = find_task(name)
    values = {**fixed, **(parameters or {})}
    check_keys(f"task {name!r}", "parameter", values, task_parameters(entry))
    return task_class(entry)(num_sequences, seed=seed, part=part, **values)


def examined_on(name: str, parameters: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the tests of a task that is trained with `parameters`: (label, parameters) of each."""
    entry, fixed = find_task(name)
    arguments = {**fixed, **parameters}
    if entry.curve is None:
        return [("", {**arguments, **{key: value for key, value in entry.test.items() if key not in parameters}})]
    key, values = entry.curve
    trained = arguments[key]
    highest = max(trained) if isinstance(trained, tuple | list) else trained
    remaining = [value for value in values if entry.beyond or value <= highest]
    if highest not in remaining and not entry.beyond:
        remaining.append(highest)
    return [(f"{key}={value}", {**arguments, key: value}) for value in remaining]
