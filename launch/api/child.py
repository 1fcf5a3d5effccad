"""A run in a process of its own, as its parent sees it, and the other end of it.

The order goes to the child's standard input, which stays open: the child stops, with a checkpoint, when it is closed,
by `stop` or because the parent is gone. News come back as lines of JSON: {"say": text}, {"phase": text}, {"refused":
text}, at the end {"outcome": {...}}, and in between {"step": steps, "metrics": {...} or null, "path": directory}. After
{"call": name of a callback, "argument": ...} the child waits for one byte on its standard input.
"""

import contextlib
import faulthandler
import json
import os
import pickle
import queue
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
from ..train.callbacks import CHECKPOINT, ROW, Callbacks
from .training import Outcome, train

STOPPED = "stop()"
"""Why a run ended whose parent has closed its standard input."""
STOP, GO_ON, END = b".", b"+", b"!"
"""Bytes on the child's standard input: stop; a callback has returned; a callback has requested the end."""
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
    callbacks: bytes = b""
    """Pickled: the function `on_update`, and the names of the callbacks that the parent calls."""


class Child:
    """A run in another process.

    Args:
        order: the run.
        callbacks: on_row and on_checkpoint are called by `join`.
    """

    def __init__(self, order: Order, callbacks: Callbacks | None = None) -> None:
        self.path: Path | None = order.directory
        self.step, self.metrics = 0, dict[str, float]()
        self.phase = ""
        """What it does before its first update."""
        self.messages: list[str] = []
        """The lines that the run has said so far."""
        self.outcome: Outcome | None = None
        self._refused = ""
        self._callbacks = callbacks or Callbacks()
        self._calls = queue.SimpleQueue[tuple[str, Any] | None]()
        """Callbacks to call; None at the end."""
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
        """Wait for the end, or until something is true; `look` and callbacks are called now and then.

        Raises what a callback raises.
        """
        while (self._reader.is_alive() or not self._calls.empty()) and not until():
            with contextlib.suppress(queue.Empty):
                if call := self._calls.get(timeout=NEWS_SECONDS):
                    self._answer(*call)
            look()
        if not self._reader.is_alive():
            self._process.wait()

    def _answer(self, name: str, argument: Any) -> None:
        ends = self._callbacks.call(name, Path(argument) if name == CHECKPOINT else argument)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # closed by `stop`
            self._process.stdin.write(END if ends else GO_ON)
            self._process.stdin.flush()

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
            elif "phase" in news:
                self.phase = news["phase"]
            elif "step" in news:
                self.step = news["step"]
                self.metrics |= {name: float("nan") if x is None else x for name, x in (news["metrics"] or {}).items()}
            elif "call" in news:
                self._calls.put((news["call"], news["argument"]))
            elif "refused" in news:
                self._refused = news["refused"]
            elif "outcome" in news:
                self.outcome = _outcome(news["outcome"])
            if news.get("path"):
                self.path = Path(news["path"])
                self._began.set()
        self._began.set()
        self._calls.put(None)


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

    ticks = False

    def message(self, text: str) -> None:
        self._send(say=text)

    def phase(self, text: str) -> None:
        self._send(phase=text)

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

    stop, answers = StopFlag(), queue.SimpleQueue[bytes]()
    threading.Thread(target=_wait_for_the_end, args=(sys.stdin.buffer, stop, answers), daemon=True).start()
    prepare_process(1)
    try:
        code = _train(order, stop, send, answers)
    except ValueError as problem:
        send(refused=str(problem))
        sys.exit(2)
    sys.exit(code)


def _train(order: Order, stop: StopFlag, send: Callable[..., None], answers: "queue.SimpleQueue[bytes]") -> int:
    def show(config: RunConfig, path: Path | None, step: int) -> Panel:
        return Relay(send, config, path, step)

    def tell(outcome: Outcome) -> None:
        path, failure = (None if value is None else str(value) for value in (outcome.path, outcome.failure))
        send(outcome=asdict(outcome) | {"path": path, "failure": failure})

    callbacks = received(order.callbacks, send, answers)
    if order.directory is None:
        changed = order.changed
        return train(order.config, None, stop, show=show, at_end=tell, changed=changed, callbacks=callbacks).exit_code
    with RunDirectory.open(order.directory) as directory:
        return train(
            order.config, directory, stop, show=show, at_end=tell, trust=order.trust, callbacks=callbacks
        ).exit_code


def _wait_for_the_end(orders: BinaryIO, stop: StopFlag, answers: "queue.SimpleQueue[bytes]") -> None:
    """Pass answers on until the parent says stop or is gone."""
    while (byte := orders.read(1)) in (GO_ON, END):
        answers.put(byte)
    stop.reason = stop.reason or STOPPED
    answers.put(b"")


def sent(callbacks: Callbacks) -> bytes:
    """Callbacks for the child. Raises ValueError for an `on_update` that another process cannot import."""
    function = callbacks.on_update
    names = [name for name in (ROW, CHECKPOINT) if getattr(callbacks, name)]
    try:
        data = pickle.dumps((function, names))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise ValueError(f"on_update is {function!r}; expected with Ray: a function of a module") from problem
    if getattr(function, "__module__", "") == "__main__":
        raise ValueError(f"on_update is {function!r}; expected with Ray: a function of a module other than __main__")
    return data


def received(data: bytes, send: Callable[..., None], answers: "queue.SimpleQueue[bytes]") -> Callbacks | None:
    """The callbacks of an order: those that the parent calls are functions that wait for its answer."""
    if not data:
        return None
    function, names = pickle.loads(data)

    def caller(name: str) -> Callable[[Any], bool]:
        def call(argument: Any) -> bool:
            send(call=name, argument=str(argument) if name == CHECKPOINT else argument)
            answer = answers.get()
            if not answer:
                answers.put(answer)  # nothing else will answer
            return answer == END

        return call

    return Callbacks(on_update=function, **{name: caller(name) for name in names})
