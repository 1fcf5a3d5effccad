"""Files that a crash, a full disk or a hasty `rm` cannot spoil: replaced as a whole, or appended to by whole records.

Files of JSON lines are in the order of their steps: rows that a stopped run wrote after its checkpoint are set aside.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that holds either its old content or all of the new, also after a power failure. Raises OSError."""
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
        os.fsync(directory)  # the new name is on disk only when its directory is
    finally:
        os.close(directory)


class AppendedFile:
    """A file to whose end records are written, each as a whole or not at all.

    If the file or its directory is removed, both come back with the next record.

    Args:
        name: makes the file's path; asked again when the file is gone.
        first: makes the bytes that an empty file begins with.
    """

    def __init__(self, name: Callable[[], Path], first: Callable[[], bytes] = bytes) -> None:
        self._name, self._first = name, first
        self._path = Path()
        self._file: int | None = None

    def append(self, record: bytes) -> None:
        """Write a record through to the operating system. Raises OSError, after which the file is as it was before."""
        file = self._open()
        end = os.fstat(file).st_size
        rest = record if end else self._first() + record
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, end)
            raise

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None or not self._path.exists():
            self.close()
            self._path = self._name()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self._file


def abandon_after(file: Path, step: int) -> dict[str, Any] | None:
    """Move rows after `step`, and what crashes have left of rows, from `x.jsonl` to `x.abandoned.jsonl`.

    They are safe in the other file before this one is replaced. Returns the last row that stays, None if there is
    none. Raises OSError.
    """
    if not file.exists():
        return None
    last: dict[str, Any] | None = None
    kept: list[bytes] = []
    moved: list[bytes] = []
    *lines, torn = file.read_bytes().split(b"\n")
    for line in lines:
        row = parsed_row(line)
        if row is not None and row["step"] <= step:
            kept.append(line + b"\n")
            last = row
        else:
            moved.append(line + b"\n")
    if torn:
        moved.append(torn + b"\n")
    if moved:
        abandoned = file.with_name(f"{file.stem}.abandoned{file.suffix}")
        before = abandoned.read_bytes() if abandoned.exists() else b""
        replace_file(abandoned, before + b"".join(moved))
        replace_file(file, b"".join(kept))
    return last


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """A row, or None if the line is none: what a crash leaves may be half of one, or two halves."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None
