# pyright: reportPrivateUsage=false
"""Rendezvous of learners in the key-value store of Ray's GCS, which only holders of Ray's token can read."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ray.experimental import internal_kv
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

PAUSE = 0.01
"""Seconds between two checks for a key."""
JOIN_SECONDS = 60.0
"""Seconds for a learner to find the others in its group; an unresponsive learner is detected earlier."""
CHECKS = 50
"""Number of checks for a key between two calls of `keep_waiting`."""


class RayStore(Store):
    """Store of torch.distributed for the start of one group.

    Args:
        prefix: prefix of its keys, different for every group.
        keep_waiting: called repeatedly while waiting for a key; an exception from it ends the wait.
    """

    def __init__(self, prefix: str, keep_waiting: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._prefix, self._keep_waiting = prefix, keep_waiting

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        internal_kv._internal_kv_put(f"{self._prefix}-{key}", value if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a value and return it. Raises RuntimeError on timeout."""
        deadline = time.monotonic() + JOIN_SECONDS
        checks, value = 0, None
        while (value := internal_kv._internal_kv_get(f"{self._prefix}-{key}")) is None:  # pyright: ignore
            if time.monotonic() > deadline:
                raise RuntimeError(f"another learner did not join within {JOIN_SECONDS:.0f} s")
            checks += 1
            if checks % CHECKS == 0:
                self._keep_waiting()
            time.sleep(PAUSE)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        """Whether the store has the optional methods, which starting a group does not need."""
        return False

    def remove(self) -> None:
        """Delete all keys."""
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True)
