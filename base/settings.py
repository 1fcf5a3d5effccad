"""Settings, each declared once as a field of a configuration: default, docstring, and the rest in its metadata."""

import functools
from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from .errors import Bounds, Span, check_choice, check_new_file, check_span


def setting(
    default: Any,
    allowed: Bounds | None = None,
    *,
    resumable: bool = False,
    passive: bool = False,
    file: str | None = None,
) -> Any:
    """Declare a field of a `Settings` dataclass.

    Args:
        default: default value.
        allowed: bounds of a numeric value. Bounds and Literal types are checked when a configuration is created.
        resumable: whether `--resume` may change it.
        passive: whether it has no effect on learning, so that it is not reported as a difference between runs.
        file: required ending of a value that is the path of a file to write ("" for any); None for other values.
    """
    declared = {"allowed": allowed, "resumable": resumable, "passive": passive, "file": file}
    return field(default=default, metadata=declared)


class Settings:
    """Base class of configuration dataclasses, which are checked when they are created. Raises EngramError."""

    prefix: ClassVar[str] = ""
    """Prefix of setting names in messages, such as "pbt."."""

    def __post_init__(self) -> None:
        choices = _choices(type(self))
        for entry in fields(self):  # pyright: ignore[reportArgumentType]
            name, allowed = self.prefix + entry.name, entry.metadata.get("allowed")
            value: Any = getattr(self, entry.name)
            if allowed is not None and value is not None:
                check_span(name, value, allowed if isinstance(allowed, Span) else Span(*allowed), choices[entry.name])
            elif choices[entry.name]:
                check_choice(name, value, choices[entry.name])
            if (ending := entry.metadata.get("file")) is not None:
                check_new_file(name, str(value), ending)


@functools.cache
def _choices(config: type) -> dict[str, tuple[Any, ...]]:
    """Values of each setting's Literal type, which may be part of a union with a numeric type."""
    choices: dict[str, tuple[Any, ...]] = {}
    for name, hint in get_type_hints(config).items():
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices[name] = tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))
    return choices


def declared(config: Any, what: str, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings, nested ones included, that are `what`: "resumable" or "passive"."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from declared(value, what, f"{prefix}{entry.name}.")
        elif entry.metadata.get(what):
            yield prefix + entry.name
