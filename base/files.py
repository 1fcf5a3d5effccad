"""Files that survive a crash, a full disk or an accidental `rm`: replaced atomically, or appended to in whole records.

Rows of JSON Lines files are ordered by step; rows that a stopped run wrote after its checkpoint are set aside.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content: even after a power failure, it is entirely old or entirely new. Raises OSError."""
    aside = path.with_name(f".{path.name}.new")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name is on disk only after its directory is synced
    finally:
        os.close(directory)


class AppendedFile:
    """Append-only file; each record is written completely or not at all.

    If the file or its directory is removed, the next record recreates both: `name` returns its path, and `first` the
    bytes with which a new file begins.
    """

    def __init__(self, name: Callable[[], Path], first: Callable[[], bytes] = bytes) -> None:
        self._name, self._first = name, first
        self._path: Path | None = None

    def append(self, record: bytes) -> None:
        """Write a record without buffering it. On failure, raise OSError and leave the file unchanged."""
        if self._path is None or not self._path.exists():
            self._path = self._name()
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            rest = record if end else self._first() + record
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise


def abandon_after(file: Path, step: int) -> dict[str, Any] | None:
    """Move rows after `step` and partial rows left by crashes from `x.jsonl` to `x.abandoned.jsonl`. Returns the last
    remaining row, or None. Raises OSError."""
    if not file.exists():
        return None
    last: dict[str, Any] | None = None
    remaining, moved = list[bytes](), list[bytes]()
    for line in file.read_bytes().splitlines(keepends=True):
        row = parsed_row(line) if line.endswith(b"\n") else None
        if row is not None and row["step"] <= step:
            remaining.append(line)
            last = row
        else:
            moved.append(line.rstrip(b"\n") + b"\n")
    if moved:
        abandoned = file.with_name(f"{file.stem}.abandoned{file.suffix}")
        before = abandoned.read_bytes() if abandoned.exists() else b""
        replace_file(abandoned, before + b"".join(moved))
        replace_file(file, b"".join(remaining))
    return last


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """Parse a row; None if the line is not a complete row: a crash may leave half a row, or two halves on one line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
