"""Classes by name: engram's own, third-party entry points, and `module:Class`."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import EngramError, calling, check_name, library_errors

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Classes of one kind. Third-party entry points are in the group `engram.<kind>s`."""

    kind: str  # Noun for messages, such as "core"
    base: type[T]
    own: Mapping[str, str]  # `module:Class` relative to `package`, by name
    package: str | None
    outside: Sequence[Path] = ()  # Folders whose frames do not belong to the user

    def names(self) -> list[str]:
        return sorted({*self.own, *(point.name for point in self._points())})

    def find(self, name: str) -> type[T]:
        """Load the class of a registered name or `module:Class`. Raises EngramError with the nearest names."""
        module, colon, attribute = self.own.get(name, name).partition(":")
        if name in self.own:
            return getattr(importlib.import_module(module, self.package), attribute)
        point = next(iter(self._points().select(name=name)), None)
        if point is None and not colon:
            check_name(self.kind, name, self.names())
        load: Callable[[], Any] = point.load if point else partial(importlib.import_module, module)
        with library_errors(f"cannot load {self.kind} {name!r}", ImportError, AttributeError):
            loaded: Any = calling(f"importing {self.kind} {name}", load, self.outside, (ImportError,))
            loaded = loaded if point else getattr(loaded, attribute)
        if not (isinstance(loaded, type) and issubclass(loaded, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise EngramError(f"{self.kind} {name!r} is not a subclass of {base}")
        return loaded

    def _points(self) -> EntryPoints:
        return entry_points(group=f"engram.{self.kind}s")
