"""Read the rows of a `metrics.jsonl`, and arrange them in columns."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.files import parsed_row

Row = dict[str, float]  # One row's metrics, with `step`
Array = NDArray[np.float64]
Table = dict[str, Array]  # Columns [K] by name, one entry per row
FINAL = 0.1  # Fraction of a run's steps, at its end, over which a final value is averaged
TAIL = 2**17  # Bytes at the end of a file that contain its last row
_FIELDS = {"step", "time", "wall_s", "metrics"}


def parse_log(content: bytes) -> list[Mapping[str, Any]]:
    """Complete rows with all fields: the last line may be half-written, and a crash may leave parts of others."""
    rows = [parsed_row(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    return [row for row in rows if row is not None and _FIELDS <= row.keys() and isinstance(row["metrics"], dict)]


def read_log(file: Path) -> list[Mapping[str, Any]]:
    """`parse_log` of a file; empty if the file does not exist."""
    try:
        return parse_log(file.read_bytes())
    except FileNotFoundError:
        return []


def read_rows(file: Path) -> list[Row]:
    """Steps and finite metrics of the complete rows of a file. Raises OSError."""
    return [
        {"step": float(row["step"])} | {name: x for name, x in row["metrics"].items() if _is_number(x)}
        for row in parse_log(file.read_bytes())
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def last_step(file: Path) -> int:
    """Step of the last complete row, read from the end of the file; 0 without rows."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL))
            rows = parse_log(source.read())
    except FileNotFoundError:
        return 0
    return int(rows[-1]["step"]) if rows else 0


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Columns `step`, `time` (s since 1970), `wall_s` (s) and every metric; nan if a row has no value."""
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    table = {key: np.array([row[key] for row in rows], np.float64) for key in ("step", "time", "wall_s")}
    for name in names:
        values = [row["metrics"].get(name) for row in rows]
        table[name] = np.array([np.nan if x is None else x for x in values], np.float64)
    return table


def series(table: Table, metric: str) -> tuple[Array, Array]:
    """Steps [K] and values [K] of a metric, without the rows where it is nan."""
    values = table.get(metric, np.zeros(0))
    finite = np.isfinite(values)
    return (table["step"][finite], values[finite]) if finite.any() else (np.zeros(0), np.zeros(0))


def series_of_run(tables: Sequence[Table], metric: str) -> tuple[Array, Array]:
    """`series` of a run, from its table and those of its members: if the run itself has no such metric, the members'
    mean, at the total steps of all members."""
    whole, *members = (series(table, metric) for table in tables)
    members = [member for member in members if len(member[0])]
    if len(whole[0]) or not members:
        return whole
    steps = max(members, key=lambda member: len(member[0]))[0]
    return steps * (len(tables) - 1), np.mean([np.interp(steps, *member) for member in members], 0)


def final_value(steps: Array, values: Array, end: float) -> float:
    """Mean of the values in the last tenth of the steps up to `end`; nan without values.

    Args:
        steps, values: a series [K] with increasing steps.
    """
    if not (steps <= end).any():
        return float("nan")
    late = (steps <= end) & (steps > (1 - FINAL) * end)
    return float(values[late].mean() if late.any() else values[steps <= end][-1])
