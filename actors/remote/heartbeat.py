# pyright: reportPrivateUsage=false
"""Heartbeats of actor processes, which tell a slow environment from one that hangs.

An answer may take minutes: its steps times the seconds of a step. While a request is under way and environments step, a
thread of the process increases a counter in the key-value store of Ray's GCS. The pool reads it only where an answer
is overdue, so environments that are not slow cost nothing.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import ray
from ray.experimental import internal_kv

LONGEST_INTERVAL = 5.0
"""Seconds between two heartbeats, at most."""


def interval(timeout: float) -> float:
    """Seconds between two heartbeats of a process that is replaced after `timeout` seconds of silence."""
    return min(LONGEST_INTERVAL, timeout / 8)


def key_of(number: int, life: int) -> str:
    """Key of the process that is number `life` in slot `number` of this job's pool."""
    return f"engram-heartbeat-{ray.get_runtime_context().get_job_id()}-{number}-{life}"


class Heart:
    """Beats while a request is under way and `progress` changes.

    Args:
        key: of `key_of`.
        progress: changes while environments step.
        seconds: between two beats.
    """

    def __init__(self, key: str, progress: Callable[[], int], seconds: float) -> None:
        self.busy_since: float | None = None
        """Monotonic time at which the request under way came; None without one."""
        self._key, self._progress, self._seconds = key, progress, seconds
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        sent = 0
        while True:
            time.sleep(self._seconds)
            since, now = self.busy_since, self._progress()
            if since is not None and time.monotonic() - since > self._seconds and now != sent:
                with suppress(Exception):  # a beat that Ray loses is followed by another one
                    internal_kv._internal_kv_put(self._key, str(now))
                sent = now


def last_beat(key: str) -> bytes | None:
    """The newest heartbeat under a key; None where there was none or Ray does not answer."""
    with suppress(Exception):
        return internal_kv._internal_kv_get(key)
    return None


def forget(key: str) -> None:
    """Remove the heartbeat of a process that is gone."""
    with suppress(Exception):
        internal_kv._internal_kv_del(key)
