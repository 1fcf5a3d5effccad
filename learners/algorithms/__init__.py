"""Algorithms by name: built in, as an entry point in the group `engram.algorithms`, or as `module:Class`."""

from dataclasses import fields
from typing import Any, get_type_hints

from ...base.errors import check_keys
from ...base.registry import Registry
from .algorithm import Algorithm

ALGORITHMS = {"a2c": ".a2c:A2C", "ppo": ".ppo:PPO", "vtrace": ".vtrace:VTrace"}
_REGISTRY = Registry("algorithm", Algorithm, ALGORITHMS, __package__)
algorithm_names, algorithm_class = _REGISTRY.names, _REGISTRY.find


def algorithm_settings(name: str, values: dict[str, Any]) -> Any:
    """Create the settings of an algorithm with these values, and defaults for the rest. Raises ValueError naming an
    unknown setting, a value of another type, or one out of range."""
    cls = algorithm_class(name).Settings
    hints = get_type_hints(cls)
    check_keys(f"algorithm {name!r}", "setting", values, [field.name for field in fields(cls)])
    values = {key: float(x) if hints[key] is float and type(x) is int else x for key, x in values.items()}
    for key, value in values.items():
        if hints[key] in (int, float, bool, str) and type(value) is not hints[key]:
            raise ValueError(f"algorithm_args {key} is {value!r}; allowed: a value of type {hints[key].__name__}")
    return cls(**values)


def make_algorithm(name: str, **values: Any) -> Algorithm:
    """Create an algorithm by name with these settings, and defaults for the rest."""
    return algorithm_class(name)(algorithm_settings(name, values))
