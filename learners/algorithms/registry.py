"""Algorithms by name: `make_algorithm("vtrace", clip_rho=1.0)`.

Third parties add algorithms with an entry point in the group `engram.algorithms` or name them as `module:Class`.
"""

import difflib
import importlib
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from .algorithm import Algorithm

ALGORITHMS = {"a2c": ".a2c:A2C", "ppo": ".ppo:PPO", "vtrace": ".vtrace:VTrace"}


def algorithm_names() -> list[str]:
    """Names of all registered algorithms."""
    return sorted({*ALGORITHMS, *(point.name for point in entry_points(group="engram.algorithms"))})


def algorithm_class(name: str) -> type[Algorithm]:
    """Class of an algorithm: a registered name or `module:Class`. Raises ValueError naming the nearest names."""
    if name in ALGORITHMS:
        module, attribute = ALGORITHMS[name].split(":")
        return getattr(importlib.import_module(module, __package__), attribute)
    for point in entry_points(group="engram.algorithms", name=name):
        return _checked(name, point.load())
    if ":" in name:
        return _foreign_class(name)
    near = difflib.get_close_matches(name, algorithm_names(), n=1)
    meant = f"; did you mean: {near[0]}?" if near else ""
    raise ValueError(f"algorithm is {name!r}; allowed: {', '.join(algorithm_names())}, or module:Class{meant}")


def algorithm_settings(name: str, values: dict[str, Any]) -> Any:
    """Create the settings of an algorithm with these values, and defaults for the rest. Raises ValueError naming an
    unknown setting, a value of another type, or one out of range."""
    cls = algorithm_class(name).Settings
    hints = get_type_hints(cls)
    names = [each.name for each in fields(cls)]
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=3) or names or ["(it has none)"]
            raise ValueError(f"algorithm {name!r} has no setting {key!r}; did you mean: {', '.join(near)}?")
        if hints[key] is float and type(value) is int:
            value = float(value)
        if hints[key] in (int, float, bool, str) and type(value) is not hints[key]:
            raise ValueError(f"algorithm_args {key} is {value!r}; allowed: a value of type {hints[key].__name__}")
        checked[key] = value
    return cls(**checked)


def make_algorithm(name: str, **values: Any) -> Algorithm:
    """Create an algorithm by name with these settings, and defaults for the rest."""
    return algorithm_class(name)(algorithm_settings(name, values))


def _foreign_class(name: str) -> type[Algorithm]:
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ValueError(f"cannot load algorithm {name!r}: {problem}") from problem
    return _checked(name, loaded)


def _checked(name: str, loaded: Any) -> type[Algorithm]:
    if not (isinstance(loaded, type) and issubclass(loaded, Algorithm)):
        raise ValueError(f"algorithm {name!r} is not a subclass of engram.learners.algorithms.algorithm.Algorithm")
    return loaded
