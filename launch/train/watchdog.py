"""Watchdog: ends a run that cannot end normally, since it makes no progress, ignores a signal, or has lost Ray.

A call into Ray or an environment may wait in native code, where Python handles no signals; if Ray's processes are
stopped or dead, or the environment hangs, the call waits forever. A thread checks once per second. When a limit is
reached, it writes a checkpoint, which is consistent since the learner is not computing at that time, prints the
reason and the stack of every thread, and ends the process.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from ...base.processes import end_children, leave_at_once
from ...base.stop_flag import StopFlag
from ..config.run_config import RunConfig
from ..runs.directory import resume_command

if TYPE_CHECKING:
    from .trainer import Trainer

LOOK_SECONDS = 1.0
START_SECONDS = 600.0  # Smallest limit until the first progress: a machine may have to boot for the actors
OBEY_SECONDS = 8.0
"""Seconds within which a stop request must end the training loop; container runtimes send SIGKILL after 10 s."""
FAILED = 3  # Exit code of a run ended by an external cause, so that --restarts resumes it


class Watchdog:
    """Watchdog of a run, active during its `with` statement until `close`.

    `trainer` is set when training begins; before that, environments are created and reset.
    """

    def __init__(self, config: RunConfig, stop: StopFlag) -> None:
        self.trainer: Trainer | None = None
        self._config, self._stop = config, stop
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
        self.close()

    def close(self) -> None:
        """End the watch; only the first call has an effect."""
        if self._over.is_set():
            return
        if self._in_main:
            signal.set_wakeup_fd(self._previous)
        self._over.set()
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        stall, watched, alone = 60 * self._config.stall_timeout, self.trainer, threading.RLock()
        request: tuple[float, str] | None = None  # Time and reason of the first stop request
        updated = moved = time.monotonic()  # Time of the last update, and of the last progress of any kind
        first = last = (0, 0)
        while not self._over.is_set():
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], LOOK_SECONDS)[0] else b""
            now, trainer = time.monotonic(), self.trainer
            reasons = [signal.Signals(number).name for number in numbers if number in StopFlag.SIGNALS]
            if request is None and (reason := next(iter(reasons), self._stop.reason)):
                request = now, reason
            lock = trainer.lock if trainer else alone
            if not lock.acquire(blocking=False):  # computing or saving takes as long as it takes
                updated = moved = now
                continue
            try:
                current = (trainer.steps, trainer.progress) if trainer else (0, 0)
                if trainer is not watched:
                    watched, first, updated, moved = trainer, current, now, now
                updated = updated if current[0] == last[0] else now
                moved = moved if current == last else now
                last = current
                limit = stall and (stall if current != first else max(stall, START_SECONDS))
                if self._over.is_set():
                    return
                if died := self.died():
                    self.end(f"{died} died", FAILED)
                elif request and now - max(request[0], updated) > OBEY_SECONDS:
                    self.end(request[1], 0)
                elif 0 < limit < now - moved:
                    self.end(f"no update for {now - moved:.0f} s, and no environment step", FAILED)
            finally:
                lock.release()

    def died(self) -> str:
        """Name a dead process that the training loop needs; empty if there is none."""
        if self._config.in_process or self.trainer is None:
            return ""
        from ...actors.remote.wire import dead_part  # imports Ray

        return dead_part()

    def end(self, reason: str, code: int) -> NoReturn:
        """Write a checkpoint if training has begun, print the reason, and end the process. The caller holds the
        trainer's lock, so the loop is paused."""
        trainer, ended = self.trainer, f"rl-train: {'ended' if code else 'stopped'} ({reason})"
        if trainer is None:
            print(f"{ended} before training began", file=sys.stderr, flush=True)
        else:
            trainer.rescuing = True
            if trainer.unsaved:
                trainer.save()
            if trainer.mirror:
                trainer.mirror.close()
            print(f"{ended} after {trainer.steps:,} steps", file=sys.stderr)
            print(f"rl-train: continue with: {resume_command(trainer.directory.path)}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
        leave(self._config, code)


def leave(config: RunConfig, code: int) -> NoReturn:
    """End this process immediately, with the processes that its environments have started."""
    if config.in_process:  # with Ray, the orphan cleanup ends the remaining processes
        end_children()
    leave_at_once(code)
