"""A run's numbers on disk: TensorBoard events and `metrics.jsonl`, row by row the same (docs/metrics.md)."""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import events
from .accumulator import Accumulator
from .files import AppendedFile, replace_file
from .run_directory import RunDirectory, flat_settings

__all__ = ["Accumulator", "MetricsWriter"]


class MetricsWriter:
    """Writes rows of metrics; losing files or a full disk costs rows and one warning, never the run.

    Args:
        run: the run's directory.
        step: environment steps at which this process begins, 0 or a checkpoint's. Rows of later steps, written before
            the run was stopped, are moved to `metrics.abandoned.jsonl`; TensorBoard is told to forget them.
        report: where the warning goes.
    """

    def __init__(self, run: Path, step: int, report: Callable[[str], None] = print) -> None:
        directory = RunDirectory(run)
        self._step, self._report, self._warned = step, report, False
        # A later file begins where the last row ended, so what earlier files still hold remains valid.
        self._events = AppendedFile(
            lambda: events.new_name(directory.tensorboard), lambda: events.beginning(self._step)
        )
        self._rows = AppendedFile(lambda: directory.metrics_file)
        wall = 0.0
        try:
            wall = _continue_from(directory.metrics_file, step)
        except OSError as problem:
            self._warn(f"cannot remove the rows after step {step:,} from {directory.metrics_file}", problem)
        self._started = time.time() - wall

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row; nothing if there are no values. Numbers that are not finite are null in `metrics.jsonl`."""
        if not values:
            return
        now = time.time()
        row = {
            "step": step,
            "time": round(now, 3),
            "wall_s": round(now - self._started, 3),
            "metrics": {name: x if math.isfinite(x) else None for name, x in values.items()},
        }
        self._append(self._rows, json.dumps(row).encode() + b"\n")
        self._append(self._events, events.scalars(step, values))
        self._step = step

    def hparams(self, config: dict[str, Any]) -> None:
        """Show the run's configuration (nested dicts) in TensorBoard's text and hparams tabs."""
        self._append(self._events, events.configuration(self._step, dict(flat_settings(config))))

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        self._events.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, file: AppendedFile, record: bytes) -> None:
        try:
            file.append(record)
        except OSError as problem:
            self._warn("cannot write metrics", problem)

    def _warn(self, what: str, problem: OSError) -> None:
        if not self._warned:
            self._warned = True
            where = f" ({problem.filename})" if problem.filename else ""
            self._report(f"{what}: {problem.strerror or problem}{where}; training goes on, every row is tried anew")


def _continue_from(file: Path, step: int) -> float:
    """Move rows after `step`, and what a crash left of a row, to `metrics.abandoned.jsonl`; the last row's `wall_s`.

    Rows are in the order of their steps, so those to move are at the end. They are safe in the other file before this
    one is replaced. Raises OSError.
    """
    if not file.exists():
        return 0.0
    rows = file.read_bytes().splitlines(keepends=True)
    kept, wall = len(rows), 0.0
    while kept:
        row = _parsed(rows[kept - 1])
        if row is not None and row["step"] <= step:
            wall = float(row["wall_s"])
            break
        kept -= 1
    if moved := b"".join(rows[kept:]):
        abandoned = file.with_name("metrics.abandoned.jsonl")
        before = abandoned.read_bytes() if abandoned.exists() else b""
        replace_file(abandoned, before + moved.removesuffix(b"\n") + b"\n")
        replace_file(file, b"".join(rows[:kept]))
    return wall


def _parsed(row: bytes) -> dict[str, Any] | None:
    """A row, or None if it is not one or not a whole one."""
    try:
        found = json.loads(row)
    except ValueError:
        return None
    whole = isinstance(found, dict) and row.endswith(b"\n")
    return found if whole and {"step", "wall_s"} <= found.keys() else None
