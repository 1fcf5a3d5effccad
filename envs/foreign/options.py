"""Check that a Gymnasium environment's `reset` reads the options that are passed to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...base.messages import advice, calling
from .batch import ForeignBatch
from .check import OUTSIDE

_OF_BATCHES = "reset_mask"
"""Option that Gymnasium's vector environments read; it is not passed on to single environments."""


class RecordedOptions(dict[str, Any]):
    """Reset options that record which keys are read.

    `read` contains the keys read by name. `all_read` is True after an access that may read every key: iteration, a
    copy, or pickling for another process, which receives a plain dict.
    """

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
        """`dict.get`; records the key."""
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        """`dict.pop`; records the key."""
        self.read.add(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        self.all_read = True
        return super().__iter__()

    def keys(self) -> Any:
        """`dict.keys`; records all keys as read."""
        self.all_read = True
        return super().keys()

    def items(self) -> Any:
        """`dict.items`; records all keys as read."""
        self.all_read = True
        return super().items()

    def values(self) -> Any:
        """`dict.values`; records all keys as read."""
        self.all_read = True
        return super().values()

    def copy(self) -> dict[str, Any]:
        """`dict.copy`; records all keys as read."""
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


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
