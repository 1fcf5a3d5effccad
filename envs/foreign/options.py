"""Check that a Gymnasium environment's `reset` reads the options that are passed to it."""

from collections.abc import Callable, Mapping
from typing import Any

from ...base.messages import advice, calling
from .batch import ForeignBatch
from .check import OUTSIDE

_OF_BATCHES = "reset_mask"
"""Option that Gymnasium's vector environments read; it is not passed on to single environments."""


def _reads_all(name: str) -> Callable[[Any], Any]:
    """A method of `dict` after which all options may have been read."""

    def method(self: Any) -> Any:
        self.all_read = True
        return getattr(dict, name)(self)

    return method


class RecordedOptions(dict[str, Any]):
    """Reset options that record which keys are `read` by name; `all_read` is set by an access that may read every key:
    iteration, a copy, or pickling for another process, which receives a plain dict."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.read, self.all_read = set[str](), False

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)

    __iter__, keys, items, values, copy = map(_reads_all, ("__iter__", "keys", "items", "values", "copy"))  # pyright: ignore

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


def check_options(batch: ForeignBatch, options: Mapping[str, Any], seed: int) -> None:
    """Reset the environments of `batch` with `options`. Raises ValueError if one is unread or `reset` raises."""
    recorded = RecordedOptions(options)
    batch.reset_options = recorded
    observation = batch.new_observation()
    calling(f"{batch.name}.reset with options {dict(options)}", lambda: batch.reset_into(observation, seed), OUTSIDE)
    if recorded.all_read:
        return
    names = sorted(recorded.read - {_OF_BATCHES})
    for key in options:
        if key not in names:
            raise ValueError(f"{batch.name}.reset reads no option {key!r}; {advice(key, names)}")
