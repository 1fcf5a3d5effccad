# pyright: reportPrivateUsage=false
"""Processes that are slow, hang, or cannot be ended.

A response may take minutes: its number of steps times the time per step. While a request is open and environments
step, a thread of the process updates a counter in Ray's key-value store; the pool reads it if a response is overdue.
Ray detects processes that are stopped, or stuck in the kernel, only after many seconds.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil
import ray
from ray.experimental import internal_kv

LONGEST_INTERVAL = 5.0  # Longest interval between two heartbeats in seconds
GRACE_SECONDS = 2.0  # Seconds for Ray to end a process itself, including child processes of environments


def key_of(number: int, life: int) -> str:
    """Key of the heartbeats of process `life` of slot `number` of this job's pool."""
    return f"engram-heartbeat-{ray.get_runtime_context().get_job_id()}-{number}-{life}"


class Heart:
    """Thread that updates `key` every few `seconds` while a request is open and `progress` changes."""

    def __init__(self, key: str, progress: Callable[[], int], seconds: float) -> None:
        self.busy_since: float | None = None  # Monotonic time at which the open request arrived
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


class ProcessPlace(NamedTuple):
    machine: str  # Address of its machine
    pid: int
    started: float  # Start time, to distinguish processes with a reused id


def place_of_this_process(machine: str) -> ProcessPlace:
    process = psutil.Process()
    return ProcessPlace(machine, process.pid, process.create_time())


class StuckProcesses:
    """Processes on this machine, which has this address, that should end soon."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._due: list[tuple[float, ProcessPlace]] = []  # Monotonic times at which processes must have ended

    def note(self, process: ProcessPlace) -> None:
        """Register a process that Ray should end; processes on other machines are left to Ray."""
        if process.machine == self._machine:
            self._due.append((time.monotonic() + GRACE_SECONDS, process))

    def end_overdue(self) -> None:
        """Send SIGKILL to processes that still exist after the grace period."""
        now = time.monotonic()
        for _, place in (entry for entry in self._due if entry[0] <= now):
            with suppress(psutil.Error):
                process = psutil.Process(place.pid)
                if process.create_time() == place.started:
                    process.kill()
        self._due = [entry for entry in self._due if entry[0] > now]
