"""Signals as a request to stop in an orderly way."""

import signal
import threading
from types import FrameType
from typing import Any


class StopFlag:
    """Turns a signal into a request to stop after the current update; a second SIGINT interrupts at once.

    Args:
        signals: those that are heard inside the `with` statement, which may be nested. Only the main thread can hear
            any.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.reason = ""
        self._signals = signals
        self._previous: list[dict[signal.Signals, Any]] = []
        """Handlers from before each `with` statement."""

    @classmethod
    def of_a_command(cls) -> "StopFlag":
        """Hears all signals, in a main thread."""
        return cls(cls.SIGNALS if threading.current_thread() is threading.main_thread() else ())

    def __enter__(self) -> "StopFlag":
        self._previous.append({number: signal.signal(number, self._note) for number in self._signals})
        return self

    def renew(self) -> None:
        """Take the signals over again, after a library has installed handlers of its own."""
        for number in self._signals:
            signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.pop().items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
