"""The table of supervised tasks, and their construction by name."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...base.messages import check_keys, check_name
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
    curve: tuple[str, tuple[Any, ...]] | None = None  # The parameter that a test varies, and its values
    beyond: bool = False  # Whether the curve extends beyond the training range; otherwise values above it are omitted
    twin: bool = False  # Whether there is a memory-free twin, `<name>-twin`


_RMC, _MNM, _LPRNN = "Santoro et al. 2018", "Munkhdalai et al. 2019", "Stepleton et al. 2018"
_LTE = "table 1, nesting 2, length 5 (LSTM, EntNet, DNC, RMC): "
_DICTIONARY = (
    "MNM-p and MNM-g reach 0 errors on all four sizes; LSTM on (4,1) only, other memories also on (8,4) (figure 2)"
)
_ORDER = "Concrete learns with gradients truncated to much less than a sequence, LSTM does not (figure 4)"


def _ours(place: str, about: str, parameters: dict[str, Any], *values: Any, **options: Any) -> Entry:
    """A task of engram, tested at several values of its last parameter."""
    return Entry("engram", place, about, parameters=parameters, curve=([*parameters][-1], values), **options)


TASKS = {
    "nth-farthest": Entry(
        _RMC,
        "vectors:NthFarthest",
        "label of the n-th farthest of 8 vectors from vector m",
        "RMC 91%, LSTM and DNC below 30%",
    ),
    **{
        name: Entry(_RMC, "execute:Execute", about, _LTE + published, {"operations": name}, {"mix": False})
        for name, about, published in (
            ("addition", "digits of a sum of numbers", "99.8, 98.4, 99.4, 99.9%"),
            ("control", "digits of the result of if and for", "97.4, 98.0, 83.8, 99.6%"),
            ("program", "digits of the result of +, -, *, if and for", "66.1, 73.4, 69.5, 79.0%"),
        )
    },
    **{
        name: Entry(_RMC, "symbols:Copying", about, _LTE + published, {"order": name}, {"length": 5})
        for name, about, published in (
            ("copy", "up to 5 digits, copied", "99.8, 91.8, 100, 100%"),
            ("reverse", "up to 5 digits, backward", "99.7, 100, 100, 100%"),
            ("double", "up to 5 digits, twice", "99.7, 62.3, 100, 99.8%"),
        )
    },
    **{
        f"dictionary-{pairs}-{length}": Entry(
            _MNM,
            "symbols:Dictionary",
            f"translate a word of {length} letters by {pairs} examples",
            _DICTIONARY,
            {"num_pairs": pairs, "length": length},
        )
        for pairs, length in ((4, 1), (8, 4), (12, 8), (16, 12))
    },
    "double-copy": Entry(
        _MNM,
        "symbols:Copying",
        "50 symbols, twice",
        "MNM learns it fast (figure 2)",
        {"order": "double", "length": 50, "number": False},
    ),
    "priority-sort": Entry(
        _MNM,
        "vectors:PrioritySort",
        "the 16 vectors of highest priority out of 20, in order",
        "LSTM+SALU best, MNM next (figure 2)",
    ),
    **{
        name: Entry(_LPRNN, "temporal_order:TemporalOrder", f"order of {about}, a stream", _ORDER, parameters)
        for name, about, parameters in (
            ("temporal-order", "2 markers in 100 steps", {}),
            ("temporal-order-3", "3 markers in 100 steps", {"markers": 3}),
            ("temporal-order-slow", "2 slow patterns in 100 steps", {"slow": True}),
        )
    },
    "recall": _ours(
        "recall:Recall",
        "which of 8 symbols was shown first, as a function of the delay",
        {"delay": (1, 100)},
        *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
        twin=True,
    ),
    "capacity": _ours(
        "recall:Pairs",
        "values of keys, as a function of the number of pairs",
        {"pairs": (1, 16)},
        *(1, 2, 4, 8, 16, 32, 64),
        twin=True,
    ),
    "interference": _ours(
        "recall:Pairs",
        "values of 4 keys, as a function of their mean cosine",
        {"pairs": 4, "similarity": (0.0, 0.9)},
        *(0.0, 0.3, 0.6, 0.8, 0.9, 0.95),
        twin=True,
    ),
    "overwriting": _ours(
        "recall:Pairs",
        "newest values of 4 keys, as a function of the number of rewrites",
        {"pairs": 4, "writes": (0, 16)},
        *(0, 1, 2, 4, 8, 16, 32, 64),
        twin=True,
    ),
    "length-generalization": _ours(
        "symbols:Copying",
        "copy of up to 10 symbols, tested with up to 40",
        {"number": False, "length": (1, 10)},
        *(5, 10, 15, 20, 30, 40),
        beyond=True,
    ),
    "noise": _ours(
        "recall:Recall",
        "which of 8 symbols was shown 10 steps ago, as a function of the noise on all features",
        {"delay": 10, "noise": (0.0, 1.0)},
        *(0.0, 0.1, 0.2, 0.5, 1.0, 2.0),
        twin=True,
    ),
}


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
    hidden = ("num_sequences", "common")
    return {k: p for k, p in inspect.signature(task_class(entry)).parameters.items() if k not in hidden}


def make_task(
    name: str, num_sequences: int, parameters: Mapping[str, Any] | None = None, *, seed: int = 0, part: str = "train"
) -> Task:
    """Make a task by name, with `num_sequences` parallel sequences. Raises ValueError with the nearest valid names for
    an unknown task or parameter."""
    entry, fixed = find_task(name)
    values = {**fixed, **(parameters or {})}
    allowed = task_parameters(entry)
    check_keys(f"task {name!r}", "parameter", values, allowed)
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
