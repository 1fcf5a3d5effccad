"""Which options the `reset` of a Gymnasium environment reads."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...base.messages import advice, calling
from .batch import ForeignBatch
from .check import OUTSIDE

_OF_BATCHES = "reset_mask"
"""Read by vector environments, and no option of an environment."""


class RecordedOptions(dict[str, Any]):
    """Options of a reset that record which keys are read; `all_read` where all of them are, or may be.

    A copy reads all of them, and so does another process, to which they are sent as a plain dict.
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
        """As of a dict."""
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        """As of a dict."""
        self.read.add(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        self.all_read = True
        return super().__iter__()

    def keys(self) -> Any:
        """As of a dict."""
        self.all_read = True
        return super().keys()

    def items(self) -> Any:
        """As of a dict."""
        self.all_read = True
        return super().items()

    def values(self) -> Any:
        """As of a dict."""
        self.all_read = True
        return super().values()

    def copy(self) -> dict[str, Any]:
        """As of a dict."""
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


def check_options(batch: ForeignBatch, options: Mapping[str, Any], seed: int) -> None:
    """Reset `batch` with `options` of its environments. Raises ValueError if one is not read, or `reset` raises."""
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
