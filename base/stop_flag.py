"""Signals as a request for an orderly stop."""

import signal
import threading
from types import FrameType
from typing import Any


class StopFlag:
    """Flag that a signal sets to request a stop after the current update; a second SIGINT interrupts at once.

    Args:
        signals: signals to handle inside the `with` statement, which may be nested; () outside the main thread.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.reason = ""
        self._signals = signals
        self._previous: list[dict[signal.Signals, Any]] = []  # Handlers from before each `with` statement

    @classmethod
    def of_a_command(cls) -> "StopFlag":
        """Return a flag for all signals in the main thread, for none in other threads."""
        return cls(cls.SIGNALS if threading.current_thread() is threading.main_thread() else ())

    def __enter__(self) -> "StopFlag":
        self._previous.append({signum: signal.signal(signum, self._note) for signum in self._signals})
        return self

    def renew(self) -> None:
        """Reinstall the handlers after a library has replaced them."""
        for signum in self._signals:
            signal.signal(signum, self._note)

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.pop().items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _: FrameType | None) -> None:
        if self.reason and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(signum).name
