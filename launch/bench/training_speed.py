"""Speed of `rl-train`: the real command in a child process, measured from its rows of metrics."""

import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import EngramError
from ..api.background import Background
from ..metrics.rows import read_log
from ..run.command_line import without

OWN_FLAGS = ("--run-dir", "--total-steps", "--time-limit", "--log-seconds")
"""Flags of `rl-train` that a measurement sets itself."""
ENDLESS = 10**15
ROWS = 3  # Minimum rows of metrics for a measurement; with few updates per second it takes longer than requested
POLL_SECONDS = 0.05
START_SECONDS = 180.0  # Seconds without a row of metrics after which a run is aborted


class TrainingSpeed(NamedTuple):
    """Speed of one run of `rl-train` after its warm-up."""

    steps_per_second: float
    steps: int
    seconds: float  # Seconds between the first and the last measured row of metrics
    metrics: dict[str, float]  # Means of the `perf/` metrics over those rows
    seconds_to_first_row: float  # Seconds from the start of the command to its first row of metrics


def training_speed(arguments: Sequence[str], seconds: float, warm_up: float) -> TrainingSpeed:
    """Run `rl-train` with these arguments for `seconds`, after `warm_up` seconds from its first row of metrics.

    It lasts longer if there are too few updates for ROWS rows. Raises EngramError if it hangs or exits, with the
    end of its output.
    """
    often = ["--log-seconds", str(seconds / (3 * ROWS)), "--total-steps", str(ENDLESS)]
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "run", time.time()
        with _last_lines():
            run = Background(path, [*without(arguments, OWN_FLAGS), *often, "--run-dir", str(path)])
        try:
            startup = _rows(run)[0]["time"] - started
            begin = time.time() + warm_up
            rows = _rows(run, ROWS, begin, begin + seconds)
        finally:
            run.stop()
            try:
                run.process.wait(60)
            except subprocess.TimeoutExpired:
                run.process.kill()
    first, last = rows[0], rows[-1]
    steps, elapsed = last["step"] - first["step"], last["time"] - first["time"]
    names = [name for name in last["metrics"] if name.startswith("perf/")]
    means = {name: sum(row["metrics"].get(name, 0.0) for row in rows[1:]) / (len(rows) - 1) for name in names}
    return TrainingSpeed(steps / elapsed, steps, elapsed, means, startup)


@contextmanager
def _last_lines() -> Generator[None]:
    try:
        yield
    except RuntimeError as problem:  # `rl-train` failed
        raise EngramError(str(problem)) from problem


def _rows(run: Background, number: int = 1, since: float = 0.0, until: float = 0.0) -> list[Any]:
    """Wait for `number` rows of metrics written after `since`, and until `until`."""
    deadline = max(until, time.time()) + START_SECONDS
    while True:
        rows = [row for row in read_log(run.path / "metrics.jsonl") if row["time"] >= since]
        if len(rows) >= number and time.time() >= until:
            return rows
        if not run.running:
            with _last_lines():
                run.wait()
        if not run.running or time.time() > deadline:
            raise EngramError(f"rl-train hangs or ended: {len(rows)} rows of metrics of {number}")
        time.sleep(POLL_SECONDS)
