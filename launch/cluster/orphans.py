"""Orphan cleanup: a small process that outlives a killed run and ends the processes that the run started.

Some of Ray's helpers remain if SIGKILL or the out-of-memory killer ends the driver. The cleanup process records all
descendants of the run while the run lives, since their parent is unknown afterward. Its standard input is a pipe that
only the run has open: it closes when the run ends for any reason. This file is run by its path, to start quickly.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

LOOK_SECONDS = 1.0  # Seconds between two records of the run's descendants
GRACE_SECONDS = 5.0  # Seconds that Ray's processes have to exit before they are killed


def start_clean_up(sessions: Path) -> "subprocess.Popen[bytes]":
    """Start the process that cleans up after this one; `sessions` is the parent of its Ray session folders."""
    command = [sys.executable, "-P", __file__, str(os.getpid()), str(sessions)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)


def main(root: int, sessions: Path) -> None:
    """Record the run's descendants while it lives; afterward, wait for them, kill the rest and clean up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    family: set[psutil.Process] = set()  # psutil identifies a process by its id and start time
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        with contextlib.suppress(psutil.Error):
            family |= {*psutil.Process(root).children(recursive=True)} - {psutil.Process()}
    _, remaining = psutil.wait_procs(family, GRACE_SECONDS)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    for folder in sessions.glob(f"session_*_{root}"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
