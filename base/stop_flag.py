"""Signals as a request for an orderly stop."""

import signal
import threading
from types import FrameType
from typing import Any


class StopFlag:
    """Turns a signal into a request to stop after the current update; a second SIGINT interrupts at once.

    Args:
        signals: handled inside the `with` statement, which may be nested. Only the main thread handles signals.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.reason = ""
        self._signals = signals
        self._previous: list[dict[signal.Signals, Any]] = []  # Handlers from before each `with` statement

    @classmethod
    def of_a_command(cls) -> "StopFlag":
        """A flag for all signals, for the main thread."""
        return cls(cls.SIGNALS if threading.current_thread() is threading.main_thread() else ())

    def __enter__(self) -> "StopFlag":
        self._previous.append({number: signal.signal(number, self._note) for number in self._signals})
        return self

    def renew(self) -> None:
        """Reinstall the handlers after a library has replaced them."""
        for number in self._signals:
            signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.pop().items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
