"""Watchdog: ends a run that cannot end normally, since it makes no progress, ignores a signal, or has lost Ray.

A call into Ray or an environment may wait in native code, where Python handles no signals; if Ray's processes are
stopped or dead, or the environment hangs, the call waits forever. A thread checks once per second. When a limit is
reached, it writes a checkpoint, which is consistent since the learner is not computing at that time, prints the
reason, and ends the process.
"""

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ...envs.foreign.check import OUTSIDE

if TYPE_CHECKING:
    from .trainer import Trainer

LOOK_SECONDS = 1.0
START_SECONDS = 600.0  # Smallest limit until the first progress: a machine may have to boot for the actors
OBEY_SECONDS = 8.0
"""Seconds within which a stop request must end the training loop; container runtimes send SIGKILL after 10 s."""
CALLS = {"step_into": "step", "reset_into": "reset", "check": "reset or step", "make_batch": "its constructor"}
"""Functions of engram.envs that call an environment, and the methods that they call."""
BASE = Path(__file__).parents[2] / "base"
FAILED = 3  # Exit code of a run ended by an external cause, so that --restarts resumes it


class Start:
    """The start phase, in which environments are created and reset: no steps yet, and nothing to save."""

    steps = progress = 0

    def __init__(self) -> None:
        self.lock = threading.RLock()


class Watchdog:
    """Watchdog of a training loop, active during its `with` statement.

    Args:
        stall_seconds: limit without progress, not counting time in which the loop computes or saves; 0 sets no limit.
        died: returns the name of a dead process that the run needs, or an empty string.
        rescue: writes a checkpoint, prints the reason, and ends the process with the exit code: (reason, code).
        stop_reason: returns the reason of a stop request other than a signal, or an empty string.
    """

    def __init__(
        self,
        watched: "Trainer | Start",
        stall_seconds: float,
        died: Callable[[], str],
        rescue: Callable[[str, int], None],
        stop_signals: tuple[signal.Signals, ...],
        stop_reason: Callable[[], str] = str,
    ) -> None:
        self._watched, self._stall_seconds, self._died, self._rescue = watched, stall_seconds, died, rescue
        self._stop_signals = {int(number) for number in stop_signals}
        self._stop_reason = stop_reason
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Watchdog":
        if self._in_main:
            self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_main:
            signal.set_wakeup_fd(self._previous)
        self._over.set()
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        request, since = None, time.monotonic()
        """The first stop request (time, reason), and the time of the last update."""
        moved = since
        first = progress = self._watched.progress
        steps = self._watched.steps
        while not self._over.is_set():
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], LOOK_SECONDS)[0] else b""
            now = time.monotonic()
            reasons = [signal.Signals(number).name for number in set(numbers) & self._stop_signals]
            if request is None and (reason := next(iter(reasons), self._stop_reason())):
                request = now, reason
            if not self._watched.lock.acquire(blocking=False):
                since = moved = now
                continue
            try:
                if self._watched.steps != steps:
                    steps, since = self._watched.steps, now
                if self._watched.progress != progress:
                    progress, moved = self._watched.progress, now
                stall = self._stall_seconds if progress != first else max(self._stall_seconds, START_SECONDS)
                self._end_if_due(request, since, now, now - moved if 0 < stall < now - moved else 0.0)
            finally:
                self._watched.lock.release()

    def _end_if_due(self, request: tuple[float, str] | None, since: float, now: float, stalled: float) -> None:
        """Save and end the run. The caller holds the lock, so the loop is paused."""
        if self._over.is_set():
            return
        if died := self._died():
            self._rescue(f"{died} died", FAILED)
        elif request and now - max(request[0], since) > OBEY_SECONDS:
            self._rescue(request[1], 0)
        elif self._stall_seconds and stalled:
            self._rescue(f"no update for {stalled:.0f} s, and no environment step", FAILED)


def hanging_call(env: str) -> str:
    """Describe the method of environment `env` that a thread of this process is executing, with its location; an
    empty string if there is none."""
    for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]
        calls = list(traceback.walk_stack(frame))[::-1]  # outermost first
        entered = [i for i, (call, _) in enumerate(calls) if call.f_code.co_name in CALLS and _is_own(call)]
        if not entered:
            continue
        for call, line in calls[entered[-1] :]:
            path = Path(call.f_code.co_filename)
            if not any(path.is_relative_to(folder) for folder in (*OUTSIDE, BASE)):
                return f"environment {env} does not return from {call.f_code.co_name} ({path}:{line})"
        return f"environment {env} does not return from {CALLS[calls[entered[-1]][0].f_code.co_name]}"
    return ""


def _is_own(frame: FrameType) -> bool:
    """Whether a call belongs to this package's envs."""
    return frame.f_globals.get("__name__", "").startswith(f"{__name__.partition('.')[0]}.envs.")
