# pyright: reportPrivateUsage=false
"""Heartbeats of actor processes, which distinguish a slow environment from one that hangs.

A response may take minutes: its number of steps times the time per step. While a request is open and environments
step, a thread of the process updates a counter in the key-value store of Ray's GCS. The pool reads it only if a
response is overdue, so fast environments have no overhead.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import ray
from ray.experimental import internal_kv

LONGEST_INTERVAL = 5.0  # Longest interval between two heartbeats in seconds


def interval(timeout: float) -> float:
    """Seconds between two heartbeats of a process that is replaced after `timeout` seconds of silence."""
    return min(LONGEST_INTERVAL, timeout / 8)


def key_of(number: int, life: int) -> str:
    """Key of process `life` of slot `number` of this job's pool."""
    return f"engram-heartbeat-{ray.get_runtime_context().get_job_id()}-{number}-{life}"


class Heart:
    """Thread that sends heartbeats while a request is open and `progress` changes.

    Args:
        key: key from `key_of`.
        progress: returns a value that changes while environments step.
        seconds: interval between two beats.
    """

    def __init__(self, key: str, progress: Callable[[], int], seconds: float) -> None:
        self.busy_since: float | None = None  # Monotonic time at which the open request arrived; None without a request
        self._key, self._progress, self._seconds = key, progress, seconds
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        sent = 0
        while True:
            time.sleep(self._seconds)
            since, now = self.busy_since, self._progress()
            if since is not None and time.monotonic() - since > self._seconds and now != sent:
                with suppress(Exception):  # a lost beat is followed by another one
                    internal_kv._internal_kv_put(self._key, str(now))
                sent = now


def last_beat(key: str) -> bytes | None:
    """Newest heartbeat under a key; None if there is none or Ray does not respond."""
    with suppress(Exception):
        return internal_kv._internal_kv_get(key)
    return None


def forget(key: str) -> None:
    """Remove the heartbeat of a process that has ended."""
    with suppress(Exception):
        internal_kv._internal_kv_del(key)
