"""A run's directory (docs/reference/run-directory.md): one directory belongs to one run, and one process at a time
trains in it. Existing files are never overwritten."""

import errno
import fcntl
import os
import re
import shlex
import socket
import sys
import time
import tomllib
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import datetime
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

import tomli_w

from ...base.errors import EngramError, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.processes import shell_command
from ..config.plain import flat_settings

CONFIG, LOCK = "config.toml", ".lock"
_NAMED = re.compile(r"([^\W\d]\w*(?:\.\w+)*):\w+")  # `module:name`: a custom class in a setting
GLANCE_SECONDS = 0.05  # Seconds after which a process that only checks the lock has released it


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """Directory of a run, from `create` or `open`; `close`, the end of a `with` statement, or the end of the process
    releases the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.tensorboard = path / "checkpoints", path / "tensorboard"
        self.metrics_file, self.population_file = path / "metrics.jsonl", path / "population.jsonl"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path | None, config: dict[str, Any], *, name: str) -> "RunDirectory":
        """Create and lock a directory for a new run, and write its configuration, without values that are None. If
        `path` is None, it is `runs/<name>-<date>-<time>`. Raises EngramError if the directory is in use, contains a run
        or other files, or cannot be written."""
        text = as_toml(config)
        run = cls(Path(path) if path is not None else new_path(name))
        _refuse_foreign(run.path)
        with _writing(run.path), ExitStack() as undo:
            undo.callback(run.close)
            run.path.mkdir(parents=True, exist_ok=True)
            run._acquire()
            refuse((run.path / CONFIG).exists(), _taken(run.path))
            replace_file(run.path / CONFIG, text)
            undo.pop_all()
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

    def member(self, number: int) -> "RunDirectory":
        return RunDirectory(self.path / "members" / str(number))

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
    """Shell command that continues a run, whether or not this Python environment is activated."""
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
    base = path = Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        with _writing(path), suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        number += 1
        path = base.with_name(f"{base.name}-{number}")


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


def refuse_inside(config: Mapping[str, Any], folder: Path) -> None:
    """Raise EngramError if a setting names a module in `folder`: code from the run's author. Imports nothing."""
    for name, value in flat_settings(config):
        for text in value if isinstance(value, list | tuple) else [value]:
            match = _NAMED.fullmatch(text) if isinstance(text, str) else None
            if file := match and _file_inside(match[1], folder):
                raise EngramError(
                    f"{name} is {text!r}, which is {file}: modules in a run directory are not imported; "
                    f"if you trust it, move {file.name} out of {shlex.quote(str(folder))}"
                )


def _file_inside(module: str, folder: Path) -> Path | None:
    """Find the first file in `folder` that `import module` may run, with or without following links.
    importlib.util.find_spec cannot be used: it imports the parent packages of a module."""
    parts, folders = module.split("."), (folder.absolute(), folder.resolve())
    for entry in {*sys.path, os.getcwd()}:  # actors also append the working directory
        for depth in range(1, len(parts) + 1):
            base = Path(entry).absolute().joinpath(*parts[:depth])
            for name in (f"{stem}{suffix}" for stem in (base, base / "__init__") for suffix in all_suffixes()):
                paths = (Path(name), Path(name).parent.resolve() / Path(name).name, Path(name).resolve())
                if os.path.exists(name) and any(path.is_relative_to(parent) for path in paths for parent in folders):
                    return paths[0]
    return None
