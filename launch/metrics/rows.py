"""Rows of a `metrics.jsonl`: their reader, tables of columns, and series of one metric."""

import math
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...base.files import parsed_row

Row = dict[str, float]
"""One row: `step`, `time` (s since 1970), `wall_s` (s of training), and its finite metrics by name."""
Array = NDArray[np.float64]
Table = dict[str, Array]  # Columns [K] by name, one entry per row
FINAL = 0.1  # Fraction of a run's steps, at its end, over which a final value is averaged
TAIL = 2**17  # Bytes at the end of a file that contain its last row
_FIELDS = ("step", "time", "wall_s")


def parse_log(content: bytes) -> list[Row]:
    """Complete rows: the last line may be half-written, and a crash may leave parts of others."""
    lines = [parsed_row(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    rows = [line | line["metrics"] for line in lines if line and isinstance(line.get("metrics"), dict)]
    return [
        {name: x for name, x in row.items() if type(x) in (int, float) and math.isfinite(x)}
        for row in rows
        if row.keys() >= {*_FIELDS}
    ]


def read_log(file: Path) -> list[Row]:
    """`parse_log` of a file; empty if the file does not exist."""
    return parse_log(file.read_bytes()) if file.exists() else []


def last_step(file: Path) -> int:
    """Step of the last complete row, read from the end of the file; 0 without rows."""
    if not file.exists():
        return 0
    with file.open("rb") as source:
        source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL))
        rows = parse_log(source.read())
    return int(rows[-1]["step"]) if rows else 0


def table_of(rows: Sequence[Row]) -> Table:
    """Columns of all values in the rows; nan if a row has no value."""
    names = dict.fromkeys(chain(_FIELDS, *rows))
    return {name: np.array([row.get(name, np.nan) for row in rows], np.float64) for name in names}


def series(table: Table, metric: str) -> tuple[Array, Array]:
    """Steps [K] and values [K] of a metric, without the rows where it is nan."""
    values = table.get(metric, np.full(len(table["step"]), np.nan))
    finite = np.isfinite(values)
    return table["step"][finite], values[finite]


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
    """Mean of a series' values [K] in the last tenth of the steps up to `end`; nan without values."""
    until = steps <= end
    if not until.any():
        return float("nan")
    late = until & (steps > (1 - FINAL) * end)
    return float(values[late].mean() if late.any() else values[until][-1])
