"""Files that a crash, a full disk or a hasty `rm` cannot spoil: replaced as a whole, or appended to by whole rows."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


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
