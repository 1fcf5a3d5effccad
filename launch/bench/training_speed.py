"""How fast `rl-train` trains: the real command in a process of its own, watched through what it writes to disk."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...base.processes import tree_memory
from ..run.command_line import UsageError, without
from ..run.run_directory import RunDirectory

OWN_FLAGS = ("--run-dir", "--total-steps", "--time-limit", "--log-seconds")
"""Flags of `rl-train` that a measurement sets itself."""
ENDLESS = 10**15
ROWS = 3
"""Rows of metrics that a speed is measured from, at least; few updates per second take longer than was asked for."""
POLL_SECONDS = 0.25
START_SECONDS = 180.0
"""A run that writes no rows of metrics for this long is given up."""


class TrainingSpeed(NamedTuple):
    """Speed of one run of `rl-train` after its warm-up."""

    steps_per_second: float
    steps: int
    seconds: float
    """Between the first and the last row of metrics that count."""
    metrics: dict[str, float]
    """Means of the `perf/` metrics over those rows."""
    seconds_to_first_row: float
    """From the command to its first row of metrics."""
    memory_mb: list[tuple[float, float]]
    """(seconds since the command was started, MB of the whole tree of processes)."""


def training_speed(words: Sequence[str], seconds: float, warm_up: float) -> TrainingSpeed:
    """Run `rl-train` with these words for `seconds` after `warm_up` seconds that follow its first row of metrics.

    It lasts longer where so few updates are made that there are no ROWS.

    Raises:
        UsageError: it hangs, or ends by itself, with its own last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        often = ["--log-seconds", str(seconds / (3 * ROWS)), "--total-steps", str(ENDLESS)]
        with _Command([*without(words, OWN_FLAGS), *often], Path(folder)) as command:
            command.wait_for_rows()
            startup = command.rows()[0]["time"] - command.started
            begin = time.time() + warm_up
            command.wait_until(begin)
            command.wait_until(begin + seconds)
            command.wait_for_rows(ROWS, since=begin)
            rows = command.rows(begin)
    first, last = rows[0], rows[-1]
    steps, elapsed = last["step"] - first["step"], last["time"] - first["time"]
    names = [name for name in last["metrics"] if name.startswith("perf/")]
    means = {name: sum(row["metrics"].get(name, 0.0) for row in rows[1:]) / (len(rows) - 1) for name in names}
    return TrainingSpeed(steps / elapsed, steps, elapsed, means, startup, command.memory_mb)


class _Command:
    """`rl-train` in a process of its own; a context manager that ends it as a person would."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._run = RunDirectory(folder / "run")
        self._words = [*words, "--run-dir", str(self._run.path)]
        self._output = folder / "output"
        self.memory_mb: list[tuple[float, float]] = []

    def __enter__(self) -> "_Command":
        self.started = time.time()
        program = "from engram.launch.train.command import run; run()"
        # -P: the working directory is not before the libraries; `run` appends it.
        command = [sys.executable, "-P", "-c", program, *self._words]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_for_rows(self, number: int = 1, since: float = 0.0) -> None:
        """Return once there are so many rows of metrics that were written after `since`."""
        deadline = time.time() + START_SECONDS
        while len(self.rows(since)) < number:
            if self._process.poll() not in (None, 0) or time.time() > deadline:
                raise self._failure()
            time.sleep(POLL_SECONDS / 10)

    def wait_until(self, end: float) -> None:
        """Return at `end` (seconds since 1970), noting the memory in use about every second."""
        while (now := time.time()) < end:
            if self._process.poll() is not None:
                raise self._failure()
            if not self.memory_mb or now - self.started - self.memory_mb[-1][0] >= 4 * POLL_SECONDS:
                self.memory_mb.append((round(now - self.started, 2), round(tree_memory(self._process.pid) / 1e6, 1)))
            time.sleep(min(POLL_SECONDS, max(end - now, 0.0)))

    def rows(self, since: float = 0.0) -> list[dict[str, Any]]:
        """The whole rows of metrics so far that were written after `since`, in seconds since 1970."""
        file = self._run.metrics_file
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row["time"] >= since]

    def _failure(self) -> UsageError:
        words = self._output.read_text(errors="replace").strip().splitlines()
        return UsageError(f"rl-train ended or hung, its last words: {words[-1] if words else '(none)'}")
