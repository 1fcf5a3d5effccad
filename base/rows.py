"""Files of JSON lines in the order of their steps: what a stopped run wrote after its checkpoint is set aside."""

import json
from pathlib import Path
from typing import Any

from .files import replace_file


def abandon_after(file: Path, step: int) -> dict[str, Any] | None:
    """Move rows after `step`, and what a crash left of a row, from `x.jsonl` to `x.abandoned.jsonl`.

    Rows are in the order of their steps, so those to move are at the end. They are safe in the other file before this
    one is replaced. Returns the last row that stays, None if there is none. Raises OSError.
    """
    if not file.exists():
        return None
    rows = file.read_bytes().splitlines(keepends=True)
    kept, last = len(rows), None
    while kept and last is None:
        row = _parsed(rows[kept - 1])
        if row is not None and row["step"] <= step:
            last = row
        else:
            kept -= 1
    if moved := b"".join(rows[kept:]):
        abandoned = file.with_name(f"{file.stem}.abandoned{file.suffix}")
        before = abandoned.read_bytes() if abandoned.exists() else b""
        replace_file(abandoned, before + moved.removesuffix(b"\n") + b"\n")
        replace_file(file, b"".join(rows[:kept]))
    return last


def _parsed(row: bytes) -> dict[str, Any] | None:
    """A row, or None if it is not one or not a whole one."""
    try:
        found = json.loads(row)
    except ValueError:
        return None
    return found if isinstance(found, dict) and row.endswith(b"\n") and "step" in found else None
