"""Settings declared once, as a field of a configuration: default, docstring, and everything else in its metadata."""

from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass
from typing import Any

from .messages import Bounds, check_fields, check_new_file


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
        allowed: bounds of a numeric value, checked when a configuration is created.
        resumable: whether `--resume` may change it.
        passive: whether it has no effect on learning, so that it is not reported as a difference between runs.
        file: required file name ending where the value is a path to write; "" for other values.
    """
    declared = {"allowed": allowed, "resumable": resumable, "passive": passive, "file": file}
    return field(default=default, metadata=declared)


class Settings:
    """Base class of configuration dataclasses; a configuration is checked when it is created. Raises EngramError."""

    def __post_init__(self) -> None:
        for entry in fields(self):  # pyright: ignore[reportArgumentType]
            bounds = entry.metadata.get("allowed")
            if bounds is not None and getattr(self, entry.name) is not None:
                check_fields(self, **{entry.name: bounds})
            if (ending := entry.metadata.get("file")) is not None:
                check_new_file(entry.name, getattr(self, entry.name), ending)


def declared(config: Any, what: str, prefix: str = "") -> Iterator[str]:
    """Dotted names of the settings of a configuration and its parts that are `resumable` or `passive`."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from declared(value, what, f"{prefix}{entry.name}.")
        elif entry.metadata.get(what):
            yield prefix + entry.name
