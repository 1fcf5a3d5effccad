"""Processes that Ray cannot end because they are stopped, or stuck in the kernel.

Ray detects them only after many seconds; until then their memory and CPU are not available to a replacement.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = 2.0  # Seconds for Ray to end a process itself, including child processes of environments


class ProcessPlace(NamedTuple):
    """Location and identity of a process."""

    machine: str  # Address of its machine
    pid: int
    started: str  # Start time in ticks since the machine was booted, to distinguish processes with a reused id


def place_of_this_process(machine: str) -> ProcessPlace:
    """Location of this process, on the machine with this address."""
    return ProcessPlace(machine, os.getpid(), _started(os.getpid()))


def _started(pid: int) -> str:
    """Start time of process `pid`; empty if /proc lacks it or the process is a zombie."""
    try:
        # The name in parentheses may contain spaces; the fields after it do not: state, parent, ..., start time.
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if values[0] == "Z" else values[19]


class StuckProcesses:
    """Processes on this machine that should end soon.

    Args:
        machine: this machine's address.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._due: list[tuple[float, ProcessPlace]] = []
        """Processes with the monotonic time at which they must have ended."""

    def note(self, process: ProcessPlace) -> None:
        """Register a process that Ray should end; processes on other machines are left to Ray."""
        if process.machine == self._machine:
            self._due.append((time.monotonic() + GRACE_SECONDS, process))

    def end_overdue(self) -> None:
        """Send SIGKILL to processes that still exist after the grace period."""
        now = time.monotonic()
        for _, process in (entry for entry in self._due if entry[0] <= now):
            if process.started and _started(process.pid) == process.started:
                with suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
        self._due = [entry for entry in self._due if entry[0] > now]
