"""A setting is declared once, as a field of a configuration: default, docstring, and in its metadata all else."""

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
    """A field of a `Settings` dataclass.

    Args:
        default: its default.
        allowed: bounds of a number, checked when a configuration is made.
        resumable: whether `--resume` may change it.
        passive: whether it leaves alone what is learned, so that nothing reports it as a difference between runs.
        file: the value is a path of a file to write, "" for none, whose name ends so.
    """
    declared = {"allowed": allowed, "resumable": resumable, "passive": passive, "file": file}
    return field(default=default, metadata=declared)


class Settings:
    """Base class of configuration dataclasses; a configuration is checked when it is made. Raises EngramError."""

    def __post_init__(self) -> None:
        for each in fields(self):  # pyright: ignore[reportArgumentType]
            bounds = each.metadata.get("allowed")
            if bounds is not None and getattr(self, each.name) is not None:
                check_fields(self, **{each.name: bounds})
            if (ending := each.metadata.get("file")) is not None:
                check_new_file(each.name, getattr(self, each.name), ending)


def declared(config: Any, what: str, prefix: str = "") -> Iterator[str]:
    """Dotted names of the settings of a configuration and its parts that are `resumable` or `passive`."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from declared(value, what, f"{prefix}{each.name}.")
        elif each.metadata.get(what):
            yield prefix + each.name
