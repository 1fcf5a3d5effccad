"""Plain values of files and calls as the types that fields of a configuration declare."""

import contextlib
import types
from typing import Any, Literal, Union, get_args, get_origin

from ....base.units import Minutes, Seconds, count, duration, is_duration

NONE = "None"
"""Stands for None among the free parameters of environments, cores and algorithms, since TOML has no such value."""


def typed(hint: Any, value: Any, name: str) -> Any:
    """A plain value as the type that its field declares. Raises ValueError for a value of another type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, Union):
        for each in inner:
            with contextlib.suppress(ValueError):
                return typed(each, value, name)
    elif origin is Literal:
        if any(value == each and type(value) is type(each) for each in inner):
            return value
    elif origin is dict and isinstance(value, dict):
        return {key: None if part == NONE else part for key, part in value.items()}
    elif origin is tuple:
        same = len(inner) == 2 and inner[1] is ...
        if isinstance(value, list | tuple) and (same or len(value) == len(inner)):
            hints = inner[:1] * len(value) if same else inner
            return tuple(typed(each, x, f"{name}[{i}]") for i, (each, x) in enumerate(zip(hints, value, strict=True)))
    elif hint in (float, Seconds, Minutes) and type(value) in (int, float):
        if abs(value) < float("inf"):
            return float(value)
    elif is_duration(hint) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return duration(value, hint)
    elif hint is int and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return count(value)
    elif hint is int and type(value) is float and value.is_integer() and abs(value) < 2**53:  # 1e6, as in words
        return int(value)
    elif isinstance(value, origin or hint) and (hint is not int or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is {value!r}; expected {_type_in_words(hint)}")


def _type_in_words(hint: Any) -> str:
    """A field's type for an error message."""
    names = {
        int: "a whole number",
        float: "a number",
        Seconds: "a duration such as 90s or 10m",
        Minutes: "a duration such as 90s or 10m",
        str: "a text",
        bool: "true or false",
        type(None): "nothing",
    }
    if get_origin(hint) in (types.UnionType, Union):
        return " or ".join(_type_in_words(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(repr(each) for each in get_args(hint))
    if get_origin(hint) is tuple:
        items = get_args(hint)
        return f"a list of {'any number' if items[-1] is ... else len(items)} of: {_type_in_words(items[0])}"
    return names.get(hint, "a table")
