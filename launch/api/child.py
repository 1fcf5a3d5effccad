"""A run in a process of its own, as its parent sees it, and the other end of it.

The order goes to the child's standard input, which stays open: the child stops, with a checkpoint, when it is closed,
by `stop` or because the parent is gone. News come back as lines of JSON: {"say": text}, {"refused": text}, at the end
{"outcome": {...}}, and in between {"step": steps, "metrics": {...} or null, "path": directory}.
"""

import contextlib
import faulthandler
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...actors.failures import ActorFailureError
from ...agents.process import prepare_process
from ..metrics.panel import Panel
from ..run.command_line import UsageError
from ..run.config import RunConfig
from ..run.run_directory import RunDirectory
from ..run.stop_flag import StopFlag
from .training import Outcome, train

STOPPED = "stop()"
STOP = b"."
"""Byte on the child's standard input that asks for the end."""
"""Why a run ended whose parent has closed its standard input."""
NEWS_SECONDS = 0.3
"""Between two news of steps without metrics."""
TAIL = 2000
"""Characters of a dead child's last words that an error shows."""
_PROGRAM = "from engram.launch.api.child import main; main()"


class Order(NamedTuple):
    """The run that a child is to train."""

    config: RunConfig
    directory: Path | None
    """Of the run to go on with; None for a new one."""
    trust: bool
    changed: str
    sys_path: list[str]
    """Where the parent finds modules."""


class Child:
    """A run in another process.

    Args:
        order: the run.
    """

    def __init__(self, order: Order) -> None:
        self.path: Path | None = order.directory
        self.step, self.metrics = 0, dict[str, float]()
        self.messages: list[str] = []
        """The lines that the run has said so far."""
        self.outcome: Outcome | None = None
        self._refused = ""
        self._began = threading.Event()
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which then asks the child to stop
        )
        assert self._process.stdin is not None
        pickle.dump(tuple(order), self._process.stdin)
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def training(self) -> bool:
        """Whether it has a run directory and is about to train, or has ended."""
        return self._began.is_set()

    def stop(self) -> None:
        """Ask for the end, after the update that is under way; `join` waits for it."""
        assert self._process.stdin is not None
        # A word besides the end of the file: a process that the caller has forked meanwhile keeps the pipe open.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(STOP)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self, look: Callable[[], None] = lambda: None, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for the end, or until something is true; `look` is called now and then."""
        while self._reader.is_alive() and not until():
            self._reader.join(NEWS_SECONDS)
            look()
        if not self._reader.is_alive():
            self._process.wait()

    def result(self) -> Outcome:
        """How it ended. Raises what ended it, if it was an error."""
        if self._refused:
            raise UsageError(self._refused)
        if self.outcome is None:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace")[-TAIL:].strip()
            raise RuntimeError(f"the training process died (exit code {self._process.returncode}): {said}")
        if self.outcome.failure:
            raise self.outcome.failure
        return self.outcome

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            if "say" in news:
                self.messages.append(news["say"])
            elif "step" in news:
                self.step = news["step"]
                self.metrics |= {name: float("nan") if x is None else x for name, x in (news["metrics"] or {}).items()}
            elif "refused" in news:
                self._refused = news["refused"]
            elif "outcome" in news:
                self.outcome = _outcome(news["outcome"])
            if news.get("path"):
                self.path = Path(news["path"])
                self._began.set()
        self._began.set()


def _outcome(news: dict[str, Any]) -> Outcome:
    failure = news.pop("failure")
    path = news.pop("path")
    return Outcome(
        **news,
        path=None if path is None else Path(path),
        failure=None if failure is None else ActorFailureError(failure),
    )


# -- in the child -----------------------------------------------------------------------------------------------------


class Relay(Panel):
    """Passes everything on to the parent instead of showing it."""

    def __init__(self, send: Callable[..., None], config: RunConfig, path: Path | None, step: int) -> None:
        super().__init__(config.total_steps * config.num_members, path, config.name, step=step)
        self._send, self._sent_at, self._live = send, 0.0, None

    def message(self, text: str) -> None:
        self._send(say=text)

    def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        if metrics or time.monotonic() - self._sent_at > NEWS_SECONDS:
            self._sent_at = time.monotonic()
            plain = {name: x if abs(x) < float("inf") else None for name, x in metrics.items()} if metrics else None
            self._send(step=step, metrics=plain, path=str(self.run_path))

    def __exit__(self, *_: object) -> None:
        """Nothing is drawn."""


def main() -> None:
    """The child's end."""
    faulthandler.enable(all_threads=False)
    order = Order(*pickle.load(sys.stdin.buffer))
    sys.path += [place for place in order.sys_path if place not in sys.path]
    news = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anything prints is no news

    def send(**what: Any) -> None:
        try:
            print(json.dumps(what), file=news, flush=True)
        except OSError:
            pass  # the parent is gone; the closed standard input says so, too

    stop = StopFlag()
    threading.Thread(target=_wait_for_the_end, args=(sys.stdin.buffer, stop), daemon=True).start()
    prepare_process(1)
    try:
        code = _train(order, stop, send)
    except ValueError as problem:
        send(refused=str(problem))
        sys.exit(2)
    sys.exit(code)


def _train(order: Order, stop: StopFlag, send: Callable[..., None]) -> int:
    def show(config: RunConfig, path: Path | None, step: int) -> Panel:
        return Relay(send, config, path, step)

    def tell(outcome: Outcome) -> None:
        path, failure = (None if value is None else str(value) for value in (outcome.path, outcome.failure))
        send(outcome=asdict(outcome) | {"path": path, "failure": failure})

    if order.directory is None:
        return train(order.config, None, stop, show=show, at_end=tell, changed=order.changed).exit_code
    with RunDirectory.open(order.directory) as directory:
        return train(order.config, directory, stop, show=show, at_end=tell, trust=order.trust).exit_code


def _wait_for_the_end(orders: BinaryIO, stop: StopFlag) -> None:
    """Until the parent says so or is gone."""
    orders.read(len(STOP))
    stop.reason = stop.reason or STOPPED
