"""Processes that Ray cannot end: one that is stopped, or stuck in the kernel, does not hear that it should end.

Ray notices only after many seconds, and until then neither its memory nor its processor is free for a replacement.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = 2.0
"""In which Ray may end a process in its own way, with the children that an environment may have started."""


class ProcessPlace(NamedTuple):
    """Where a process is found."""

    machine: str
    """The address of its machine."""
    pid: int
    started: str
    """When, in ticks since the machine was booted: a number that was given to another process has another one."""


def place_of_this_process(machine: str) -> ProcessPlace:
    """Of this process, on the machine with this address."""
    return ProcessPlace(machine, os.getpid(), _started(os.getpid()))


def _started(pid: int) -> str:
    """The start time of process `pid`; empty where /proc has none, or it has ended and its parent has yet to notice."""
    try:
        # The name in parentheses may hold spaces; what follows it does not: state, parent, ..., start time.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[19]


class StuckProcesses:
    """Processes on this machine that should be gone soon.

    Args:
        machine: this machine's address.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._due: list[tuple[float, ProcessPlace]] = []
        """Monotonic time at which a process must have ended."""

    def note(self, process: ProcessPlace) -> None:
        """Note a process that Ray was asked to end; one on another machine is left to the Ray there."""
        if process.machine == self._machine:
            self._due.append((time.monotonic() + GRACE_SECONDS, process))

    def end_overdue(self) -> None:
        """SIGKILL those that are still there after their grace."""
        now = time.monotonic()
        for _, process in (each for each in self._due if each[0] <= now):
            if process.started and _started(process.pid) == process.started:
                with suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
        self._due = [each for each in self._due if each[0] > now]
