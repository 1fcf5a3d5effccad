"""The table of supervised tasks, tasks.toml, and their construction by name."""

import importlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import check_keys, check_name
from .task import Task


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
    """Return all task names."""
    return [*TASKS, *(f"{name}-twin" for name, entry in TASKS.items() if entry.twin)]


def find_task(name: str) -> tuple[Entry, dict[str, Any]]:
    """Return a task and the parameters that its name implies. Raises ValueError with the nearest names."""
    check_name("task", name, task_names())
    entry = TASKS.get(name) or TASKS[name.removesuffix("-twin")]
    return entry, {**entry.parameters, **({} if name in TASKS else {"twin": True})}


def task_class(entry: Entry) -> type[Task]:
    """Import and return the class of a task."""
    module, _, name = entry.place.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def task_parameters(entry: Entry) -> dict[str, inspect.Parameter]:
    """Return the parameters of a task, by name."""
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
