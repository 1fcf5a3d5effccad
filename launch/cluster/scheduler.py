"""Several runs of one command: processes of `rl-train`, a few at a time, stopped and resumed together.

Ctrl-C in a terminal reaches only the command, which sends SIGTERM to every process and waits for the checkpoints. If
the command dies, the kernel sends SIGTERM instead.
"""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...base.processes import end_with_parent
from ..metrics.rows import last_step

NICENESS = 10  # Niceness of the processes, which keeps the machine usable for other work
POLL_SECONDS = 1.0
LAST_LINE = 300  # Longest part of a failed run's last line in its message


class RunFailedError(RuntimeError):
    """A run ended with an error."""


@dataclass(frozen=True, eq=False)
class Job(ABC):
    folder: Path  # The run directory
    label: str  # Name in messages

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def steps(self) -> int:
        return last_step(self.folder / "metrics.jsonl")

    @property
    @abstractmethod
    def total_steps(self) -> int: ...

    @property
    @abstractmethod
    def finished(self) -> bool: ...

    @abstractmethod
    def command(self) -> list[str]: ...

    def complete(self) -> None:
        return  # nothing to do

    def outcome(self, event: str) -> str:
        return f"{self.label}: {event} at {self.steps():,} of {self.total_steps:,} steps"


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@contextmanager
def signals_as_interrupt() -> Generator[None]:
    """Handle SIGTERM and SIGHUP as Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_shown(jobs: Sequence[Job], at_a_time: int, console: Console, deadline: float = float("inf")) -> bool:
    """Run and complete every job that is not finished, `at_a_time` processes at once; return whether all are finished.

    At the `deadline`, a value of `time.monotonic()`, or at a KeyboardInterrupt, every process is stopped with a
    checkpoint. Raises RunFailedError if a run failed, after the others have ended.
    """
    waiting = [job for job in jobs if not job.finished]
    running: dict[Job, tuple[subprocess.Popen[bytes], TaskID]] = {}
    failed: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        try:
            while (waiting or running) and time.monotonic() < deadline:
                while waiting and len(running) < at_a_time:
                    job = waiting.pop(0)
                    running[job] = _start(job), progress.add_task(job.label, total=job.total_steps, status="")
                time.sleep(POLL_SECONDS)
                for job, (process, bar) in list(running.items()):
                    if process.poll() is None:
                        progress.update(bar, completed=(steps := job.steps()), status=f"{steps:,} steps")
                        continue
                    del running[job]
                    progress.remove_task(bar)
                    try:
                        _complete(job, process.returncode)
                        event = "finished" if job.finished else "stopped"
                    except RunFailedError as problem:
                        failed, event = [*failed, str(problem)], "failed"
                    console.print(job.outcome(event), highlight=False)
        finally:
            for process, _ in running.values():
                process.send_signal(signal.SIGTERM)
            for job, (process, _) in running.items():
                process.wait()
                console.print(job.outcome("stopped"), highlight=False)
    if failed:
        raise RunFailedError("; ".join(failed))
    return all(job.finished for job in jobs)


def lower_priority() -> None:
    """Run at a lower priority and end with the parent; for `preexec_fn`."""
    os.nice(NICENESS)
    end_with_parent()


def _start(job: Job) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process: Any = subprocess.Popen(job.command(), **streams, preexec_fn=lower_priority, start_new_session=True)
        return process


def _complete(job: Job, code: int) -> None:
    if code:
        last = "".join(job.log.read_text(errors="replace").strip().splitlines()[-1:])[:LAST_LINE]
        raise RunFailedError(f"{job.label}: rl-train ended with exit code {code}; see {job.log} ({last})")
    job.complete()
