"""Ends a run that can no longer end by itself: no progress, a signal that nobody hears, or Ray is dead.

A call into Ray waits in native code, where Python handles no signal; if Ray's processes are stopped or dead it waits
for ever, or the whole process is ended. A thread looks once a second. In the end it writes a checkpoint, which is whole
since the learner is not computing then, says what happened, and ends the process.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

LOOK_SECONDS = 1.0
START_SECONDS = 600.0
"""In which the first update must come, at least: a machine may have to be booted for the actors."""
HEAR_SECONDS = 30.0
"""In which a signal that asks for a stop must have ended the training loop."""
FAILED = 3
"""Exit code of a run that something outside it has ended, so that --restarts goes on."""


class Watched(Protocol):
    """The training loop, as it is seen from outside."""

    lock: "threading.RLock"
    """Held while it computes or saves."""

    @property
    def steps(self) -> int:
        """Environment steps learnt from."""
        ...


class Watchdog:
    """Watches over a training loop while its `with` statement runs.

    Args:
        watched: the loop.
        stall_seconds: without progress, not counting those in which it computes or saves; 0 allows any number.
        died: the name of a process that the run needs and that is dead, or nothing.
        rescue: writes a checkpoint, says the reason, and ends the process with the exit code: (reason, code).
        stop_signals: those that ask for a stop.
    """

    def __init__(
        self,
        watched: Watched,
        stall_seconds: float,
        died: Callable[[], str],
        rescue: Callable[[str, int], None],
        stop_signals: tuple[signal.Signals, ...],
    ) -> None:
        self._watched, self._stall_seconds, self._died, self._rescue = watched, stall_seconds, died, rescue
        self._stop_signals = {int(number) for number in stop_signals}
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous)
        self._over.set()
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        asked, since = None, time.monotonic()
        first = steps = self._watched.steps
        while not self._over.is_set():
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], LOOK_SECONDS)[0] else b""
            now = time.monotonic()
            for number in set(numbers) & self._stop_signals:
                asked = asked or (now, signal.Signals(number).name)
            if not self._watched.lock.acquire(blocking=False):
                since = now
                continue
            try:
                if self._watched.steps != steps:
                    steps, since = self._watched.steps, now
                stall = self._stall_seconds if steps != first else max(self._stall_seconds, START_SECONDS)
                self._end_if_due(asked, now, since, stall)
            finally:
                self._watched.lock.release()

    def _end_if_due(self, asked: tuple[float, str] | None, now: float, since: float, stall: float) -> None:
        """Called with the lock held, so that the loop stays where it is."""
        if self._over.is_set():
            return
        if died := self._died():
            self._rescue(f"{died} died", FAILED)
        elif asked and now - max(asked[0], since) > HEAR_SECONDS:
            self._rescue(asked[1], 0)
        elif self._stall_seconds and now - since > stall:
            self._rescue(f"no update for {now - since:.0f} s", FAILED)
