"""Orphan clean-up: a small process that outlives a run which was killed, and ends what the run had started.

Ray ends its main processes with their driver, but some of its helpers stay behind when the driver dies of SIGKILL or of
the out-of-memory killer. The clean-up process notes all descendants of the run while it lives, since afterwards nothing
tells whose they were, and ends those that are left.

It reads its standard input, a pipe that only the run holds: the pipe closes when the run ends, however it ends. This
file is run by path and imports the standard library alone, to cost next to nothing.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0
"""How often the family is noted down."""
GRACE_SECONDS = 5.0
"""Seconds that Ray needs at most to end its own processes in an orderly way."""


class Process(NamedTuple):
    """A process as /proc shows it; number and start time together never come twice."""

    number: int
    started: str
    parent: int


def start_clean_up() -> "subprocess.Popen[bytes]":
    """Start the process that cleans up after this one and all that it will start."""
    return subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def processes() -> list[Process]:
    """All processes that are not zombies (Linux; none elsewhere)."""
    found: list[Process] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold spaces; what follows it does not: state, parent, ..., start time.
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            if words[0] != "Z":
                found.append(Process(int(folder.name), words[19], int(words[1])))
    return found


def descendants(root: int) -> set[tuple[int, str]]:
    """Number and start time of all that descend from process `root`, without the calling process."""
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


def main(root: int) -> None:
    """Note the family while the run lives; when it has ended, give it time to follow and end the rest."""
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
            return
        time.sleep(0.2)


if __name__ == "__main__":
    main(int(sys.argv[1]))
