"""The watchdog ends a run that makes no progress, does not hear its signals, or has lost its Ray; no other."""

import os
import signal
import threading
import time

import pytest

from engram.base.processes import StopFlag
from engram.launch.config.run_config import RunConfig
from engram.launch.train import acting
from engram.launch.train.acting import FAILED, Watchdog


class Loop:
    """A training loop as the watchdog sees one."""

    def __init__(self) -> None:
        self.lock, self.steps, self.looked = threading.RLock(), 0, 0

    @property
    def progress(self) -> int:
        return self.steps + self.looked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(acting, "OBEY_SECONDS", 0.4)
    monkeypatch.setattr(acting, "START_SECONDS", 0.8)


class Noting(Watchdog):
    """A watchdog that notes why it would end the process."""

    def __init__(self, loop: Loop | None, stall: float, died: str = "") -> None:
        super().__init__(RunConfig(stall_timeout=stall / 60), StopFlag(()))
        self.trainer, self._dead, self.ends = loop, died, list[tuple[str, int]]()  # type: ignore[assignment]

    def died(self) -> str:
        return self._dead

    def end(self, reason: str, code: int) -> None:  # type: ignore[override]
        self.ends.append((reason, code))


def watch(loop: Loop, stall: float, seconds: float, died: str = "", signaled: bool = False) -> list[tuple[str, int]]:
    """The reason that ends the loop within so many seconds, in which it does nothing but add a step after 0.1 s."""
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)  # a handler that the loop never looks at
    try:
        with Noting(loop, stall, died) as watchdog:
            if signaled:
                os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
            loop.steps += 1
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not watchdog.ends:
                time.sleep(0.02)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    return watchdog.ends[:1]


def test_no_update_for_too_long_is_the_end() -> None:
    assert watch(Loop(), stall=0.2, seconds=60) == [("no update for 0 s, and no environment step", FAILED)]


def test_a_loop_without_a_limit_or_within_it_goes_on() -> None:
    assert watch(Loop(), stall=0, seconds=0.5) == []
    assert watch(Loop(), stall=30, seconds=0.3) == []


def test_a_process_that_died_is_named_at_once() -> None:
    assert watch(Loop(), stall=0, seconds=60, died="Ray's raylet") == [("Ray's raylet died", FAILED)]


def test_a_signal_that_nobody_hears_is_carried_out() -> None:
    assert watch(Loop(), stall=0, seconds=60, signaled=True) == [("SIGUSR1", 0)]


def test_computing_and_saving_are_no_stall() -> None:
    loop = Loop()
    with loop.lock:
        assert watch(loop, stall=0.1, seconds=0.6, died="Ray's raylet", signaled=True) == []


@pytest.mark.parametrize("loop", [Loop(), None], ids=["before the first step", "before training"])
def test_starting_actors_may_take_longer_than_an_update(loop: Loop | None) -> None:
    began = time.monotonic()
    with Noting(loop, 0.1) as watchdog:
        while not watchdog.ends and time.monotonic() - began < 60:
            time.sleep(0.02)
    assert time.monotonic() - began >= 0.8
    assert watchdog.ends[0][1] == FAILED


def test_updates_before_the_first_look_are_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "START_SECONDS", 1000)
    loop, began = Loop(), time.monotonic()
    with Noting(None, 0.2) as watchdog:
        watchdog.follow(loop)  # type: ignore[arg-type]
        loop.steps = 80
        while not watchdog.ends and time.monotonic() - began < 60:
            time.sleep(0.02)
    assert watchdog.ends[0][1] == FAILED
