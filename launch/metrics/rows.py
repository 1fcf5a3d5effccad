"""Rows of a `metrics.jsonl`, read back."""

import json
import math
from pathlib import Path
from typing import Any

Row = dict[str, float]
"""One row's metrics, with `step`."""


def read_rows(file: Path) -> list[Row]:
    """Whole rows of a file; damaged rows and values that are not numbers are left out. Raises OSError."""
    rows: list[Row] = []
    for line in file.read_bytes().splitlines():
        try:
            found: Any = json.loads(line)
            step, metrics = found["step"], found["metrics"]
            rows.append({"step": float(step)} | {k: float(v) for k, v in metrics.items() if _is_number(v)})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
