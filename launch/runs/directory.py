"""A run's directory: its files, and the rule that one directory belongs to one run.

    config.toml         the resolved configuration
    checkpoints/        step-*/
    metrics.jsonl       every row of metrics (docs/reference/metrics.md)
    tensorboard/        the same metrics as TensorBoard events
    population.jsonl    the events of population-based training
    members/0/ ...      metrics.jsonl and tensorboard/ of each member of a population
    .lock               locked by the process that trains in this directory

Existing files are never overwritten: a second run or unrelated files cause an error.
"""

import errno
import fcntl
import os
import re
import shlex
import socket
import time
import tomllib
import warnings
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import tomli_w

from ...base.errors import EngramError, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.processes import shell_command
from ..config.imports import refuse_inside

CONFIG, LOCK = "config.toml", ".lock"
GLANCE_SECONDS = 0.05  # Seconds after which a process that only checks the lock has released it


class RunDirectory:
    """Directory of a run, made by `create` or `open`. Call `close`, or use it in a `with` statement. The lock belongs
    to the process: `close` or the end of the process releases it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path | None, config: dict[str, Any], *, name: str) -> "RunDirectory":
        """Create and lock a directory for a new run, and write its configuration.

        Args:
            path: the directory, created with its parents; None creates `runs/<name>-<date>-<time>`.
            config: nested dicts of plain values; None values are omitted.
            name: name of the directory if `path` is None.

        Raises:
            EngramError: the directory is in use, contains a run or other files, or cannot be written.
        """
        text = as_toml(config)
        run = cls(Path(path) if path is not None else new_path(name))
        _refuse_foreign(run.path)
        try:
            with _writing(run.path):
                run.path.mkdir(parents=True, exist_ok=True)
                run._acquire()
                if (run.path / CONFIG).exists():
                    raise EngramError(_taken(run.path))
                replace_file(run.path / CONFIG, text)
        except EngramError:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> "RunDirectory":
        """Open the directory of an existing run: locked for resuming, or with `lock=False` for reading only."""
        run = cls(Path(path))
        if CONFIG not in _names(run.path):
            state = f"has no {CONFIG}" if run.path.exists() else "does not exist"
            raise EngramError(f"{run.path} contains no run: it {state}")
        if lock:
            with _writing(run.path):
                run._acquire()
        return run

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def member(self, number: int) -> "RunDirectory":
        """Directory of the metrics of a population's member."""
        return RunDirectory(self.path / "members" / str(number))

    @property
    def population_file(self) -> Path:
        return self.path / "population.jsonl"

    def config(self) -> dict[str, Any]:
        """Read the configuration as saved: without None values, with lists instead of tuples."""
        file = self.path / CONFIG
        values = read_toml(file, f"cannot read {file}", f"{file} is damaged")
        with user_errors(str(file)):
            refuse_inside(values, self.path)
        return values

    def rewrite_config(self, config: dict[str, Any]) -> None:
        with _writing(self.path):
            replace_file(self.path / CONFIG, as_toml(config))

    @property
    def in_use(self) -> bool:
        """Whether a process is training in the directory."""
        try:
            with (self.path / LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as problem:
            return isinstance(problem, BlockingIOError)
        return False

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _acquire(self) -> None:
        """Take the lock, or report its owner. The file remains after the release: removing it would cause a race."""
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # perhaps held only briefly, by `in_use` in another process
                time.sleep(GLANCE_SECONDS)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            holder = os.read(lock, 200).decode(errors="replace").strip() or "another process"
            os.close(lock)
            raise EngramError(
                f"{self.path} is in use by {holder}; wait for it, stop it, or choose another --run-dir"
            ) from problem
        except OSError as problem:
            # Some network file systems have no locks; train without one there.
            if problem.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(lock)
                raise
            warnings.warn(f"{self.path}: its file system has no locks, so a second run is not prevented", stacklevel=3)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock = lock


def refuse_unusable(path: str | None) -> None:
    """Raise EngramError if `RunDirectory.create` would, as far as can be checked without creating anything."""
    if path is not None:
        _refuse_foreign(Path(path))
        if CONFIG in _names(Path(path)):
            RunDirectory.open(path).close()  # an error if it is in use
            raise EngramError(_taken(path))


def resume_command(run: Path | str) -> str:
    """Command that continues a run, quoted for a shell; valid whether or not this Python environment is activated."""
    return f"{shell_command('rl-train')} --resume {shlex.quote(str(run))}"


def _taken(path: Path | str) -> str:
    return f"{path} contains a run; to continue it: {resume_command(path)}; for a new one choose another --run-dir"


def _writing(path: Path) -> AbstractContextManager[None]:
    return file_errors(f"cannot write to run directory {path}")


def _names(path: Path) -> list[str]:
    """List the names in a directory, sorted; none if it does not exist. Raises EngramError if it cannot be read."""
    with file_errors(f"cannot use {path} as a run directory"):
        return sorted(os.listdir(path)) if path.exists() else []


def _refuse_foreign(path: Path) -> None:
    """Raise EngramError if a directory contains files but no run; files of a failed start are ignored."""
    names = [name for name in _names(path) if name != LOCK and not name.startswith(f".{CONFIG}")]
    if names and CONFIG not in names:
        raise EngramError(f"{path} is not empty and contains no run (but {names[0]!r}); choose another --run-dir")


def new_path(name: str) -> Path:
    """Create `runs/<name>-<date>-<time>`, numbered if that exists; characters not allowed in a file name become '-'."""
    stem = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    base = Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    endings = chain([""], (f"-{i}" for i in count(2)))
    while True:
        path = base.with_name(base.name + next(endings))
        with _writing(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def read_toml(file: Path, unreadable: str, wrong: str) -> dict[str, Any]:
    """Read the tables of a TOML file. Raises EngramError with a message that begins with `unreadable` or `wrong`."""
    with file_errors(unreadable), user_errors(wrong):
        values = tomllib.loads(file.read_text("utf-8"))
        refuse(not values, "it is empty")
        return values


def as_toml(config: dict[str, Any]) -> bytes:
    """Convert a configuration to TOML text. Raises EngramError for values that TOML cannot represent."""
    with user_errors(f"{CONFIG} can contain only numbers, strings, booleans, lists and tables"):
        return tomli_w.dumps(_plain(config)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(x) for key, x in value.items() if x is not None}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return str(value) if isinstance(value, Path) else value
