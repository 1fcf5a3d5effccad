"""Orphan cleanup: a small process that outlives a killed run and ends the processes that the run had started.

Ray ends its main processes with their driver, but some of its helpers remain when the driver dies of SIGKILL or of
the out-of-memory killer. The cleanup process records all descendants of the run while it lives, since afterwards
their parent is unknown. Then it ends the remaining ones and removes the folders of the run's Rays (sockets and logs).

It reads its standard input, a pipe that only the run has open: the pipe closes when the run ends for any reason. This
file is run by path and imports the standard library only, to cost little.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0  # Seconds between two records of the run's descendants
GRACE_SECONDS = 5.0  # Seconds that Ray needs at most for an orderly end of its processes


STALE_SECONDS = 3600.0
"""Age of the newest log, in seconds, after which the folder of a Ray without a process is removed: Ray writes to its
logs every minute, and its process may be in another container that shares the folder."""


class Process(NamedTuple):
    """A process in /proc; id and start time together are unique."""

    number: int
    started: str
    parent: int


def start_clean_up(sessions: Path) -> "subprocess.Popen[bytes]":
    """Start the process that cleans up after this one and its descendants.

    Args:
        sessions: parent of the folders of this process's Rays.
    """
    return subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid()), str(sessions)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def processes() -> list[Process]:
    """All processes that are not zombies (Linux only; empty elsewhere)."""
    result: list[Process] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in parentheses may contain spaces; the fields after it do not: state, parent, ..., start time.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                result.append(Process(int(folder.name), fields[19], int(fields[1])))
    return result


def descendants(root: int) -> set[tuple[int, str]]:
    """Id and start time of all descendants of process `root`, without the calling process."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    family: set[tuple[int, str]] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child.number != os.getpid():
                family.add((child.number, child.started))
                waiting.append(child.number)
    return family


def remove_stale(sessions: Path) -> None:
    """Remove the folders of Rays whose process has ended and whose logs are older than STALE_SECONDS."""
    alive = {process.number for process in processes()}
    for folder in sessions.glob("session_*_[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            newest = max(file.stat().st_mtime for file in (folder, *folder.glob("logs/*")))
            if alive and int(folder.name.rpartition("_")[2]) not in alive and time.time() - newest > STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def main(root: int, sessions: Path) -> None:
    """Record the run's descendants while it lives; after its end, wait for them, end the rest and clean up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    family: set[tuple[int, str]] = set()
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        family |= descendants(root)
    deadline = time.monotonic() + GRACE_SECONDS
    while left := family & {(p.number, p.started) for p in processes()}:
        if time.monotonic() > deadline:
            for number, _ in left:
                with contextlib.suppress(OSError):
                    os.kill(number, signal.SIGKILL)
            break
        time.sleep(0.2)
    for folder in sessions.glob(f"session_*_{root}"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
