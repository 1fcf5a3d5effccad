"""Copies of a run's checkpoints at any URL that fsspec can write to (s3://, gs://, file://, ...).

    URL/config.toml
    URL/metrics.jsonl           rows of metrics at the start of the last copy
    URL/population.jsonl        the log of a population, likewise
    URL/checkpoints/step-*/     as in the run directory; SHA256SUMS is written last

A separate thread copies a checkpoint once it is complete on the local disk: training does not wait for the
network. An interrupted copy has no SHA256SUMS and does not count as a checkpoint. An error causes a warning: the
local checkpoint remains, and the next one is copied.
"""

import contextlib
import shutil
import threading
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from ...base.errors import refuse, user_errors
from ...learners import checkpoints
from ..config.imports import refuse_inside
from ..config.urls import first_line, open_store, redacted, store_errors
from . import saved
from .directory import CONFIG, RunDirectory, new_path, resume_command

LAST_WAIT = 60.0  # Seconds that a run waits at its end for the last checkpoint to be copied


class Mirror:
    """Copying of checkpoints to a URL, one at a time; of several waiting ones, only the newest is copied.

    Args:
        extra_files: files of the run to copy with every checkpoint, if they exist.
        keep: number of newest checkpoints to keep at the URL, in addition to those in the run directory.
    """

    def __init__(self, url: str, extra_files: Sequence[Path], keep: int, warn: Callable[[str], None]) -> None:
        self._files, self._root = _open(url)
        self._extra_files, self._keep, self._warn = extra_files, keep, warn
        self._secret, self._url = url, redacted(url)
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="checkpoint mirror", daemon=True)
        self._thread.start()

    def push(self, path: Path) -> None:
        """Schedule a copy of the checkpoint at `path`, after the current copy."""
        with self._changed:
            self._waiting = path
            self._changed.notify()

    def close(self) -> None:
        """Wait for pending copies, with a time limit."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(LAST_WAIT)
        if self._thread.is_alive():
            self._warn(f"the last checkpoint is not at {self._url} after {LAST_WAIT:.0f} s; it is in the run directory")

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._ended)
                path, self._waiting = self._waiting, None
            if path is None:
                return
            try:
                self._copy(path)
                self._prune(path.parent)
            except Exception as problem:  # each store raises different exceptions
                why = first_line(problem, self._secret)
                self._warn(f"checkpoint {path.name} is not at {self._url}: {why}; training continues")

    def _copy(self, path: Path) -> None:
        folder = f"{self._root}/checkpoints/{path.name}"
        marker = checkpoints.FILES[-1]
        with ExitStack() as stack:
            # Open all files before sending the first: the run may remove this checkpoint during the copy.
            sources = {name: stack.enter_context((path / name).open("rb")) for name in checkpoints.FILES}
            if self._files.exists(f"{folder}/{marker}"):
                self._files.rm(f"{folder}/{marker}")
            self._files.makedirs(folder, exist_ok=True)
            for file in filter(Path.exists, self._extra_files):
                with file.open("rb") as source:
                    self._send(source, f"{self._root}/{file.name}")
            for name, source in sources.items():
                self._send(source, f"{folder}/{name}")

    def _send(self, source: BinaryIO, target: str) -> None:
        with self._files.open(target, "wb") as output:
            shutil.copyfileobj(source, output, 1 << 20)

    def _prune(self, local: Path) -> None:
        steps = _steps(self._files, self._root)
        for name in steps[: -self._keep]:
            if not (local / name).exists():
                self._files.rm(f"{self._root}/checkpoints/{name}", recursive=True)


def holds_run(url: str) -> bool:
    """Whether `url` already contains a run's checkpoints. Raises EngramError if it cannot be read."""
    files, root = _open(url)
    with store_errors(f"cannot access {redacted(url)}", url):
        return bool(files.exists(f"{root}/{CONFIG}"))


def fetch(url: str, target: str | None) -> Path:
    """Make a run directory from the run at `url`, ready to resume: the configuration, the newest intact checkpoint, the
    best checkpoint recorded in it, the metrics, and a population's log.

    Args:
        target: the run directory to create; None creates one under `runs`.

    Raises:
        EngramError: `url` contains no run that can be resumed, or `target` is in use.
    """
    files, root = _open(url)
    with store_errors(f"{redacted(url)} contains no run", url):
        _refuse_link(files, f"{root}/{CONFIG}")
        config = files.cat_file(f"{root}/{CONFIG}")
        names = _steps(files, root)
    settings = dict[str, Any]()
    with contextlib.suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):  # resuming reports the damage
        settings = tomllib.loads(config.decode())
    if isinstance(files, LocalFileSystem):
        with user_errors(redacted(url)):
            refuse_inside(settings, Path(root))
    run = Path(target) if target else new_path(redacted(url).rstrip("/").rpartition("/")[2])
    refuse(run.exists() and any(run.iterdir()), f"{run} is not empty; to continue the run there: {resume_command(run)}")
    directory = RunDirectory(run)

    def fetch_checkpoint(name: str) -> bool:
        path = directory.checkpoints / name
        try:
            for file in checkpoints.FILES:
                _get(files, f"{root}/checkpoints/{name}/{file}", path / file)
            checkpoints.verify(path)
        except Exception as problem:  # each store raises different exceptions
            shutil.rmtree(path, ignore_errors=True)
            print(f"skipped a checkpoint at {redacted(url)}: {first_line(problem, url)}")
            return False
        return True

    newest = next(filter(fetch_checkpoint, reversed(names)), "")
    refuse(not newest, f"{redacted(url)} has no intact checkpoint to resume from")
    with contextlib.suppress(checkpoints.CheckpointError):  # resuming reports the damage
        best = saved.read(directory.checkpoints / newest)["best"]
        name = best and checkpoints.path_of(directory.checkpoints, best.step).name
        if name in names and name != newest:
            fetch_checkpoint(name)
    for log in (directory.metrics_file, directory.population_file):
        if files.exists(f"{root}/{log.name}"):
            _get(files, f"{root}/{log.name}", log)
    (run / CONFIG).write_bytes(config)
    return run


def _get(files: Any, source: str, target: Path) -> None:
    """Copy one file to this machine. Raises EngramError for a link."""
    _refuse_link(files, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.get_file(source, str(target))


def _refuse_link(files: Any, source: str) -> None:
    """Raise EngramError for a link, which may point to any file on this machine."""
    refuse(files.info(source).get("islink"), f"{source} is a link; expected: a file")


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises EngramError for an unsupported kind of URL."""
    with store_errors(f"cannot use {redacted(url)}", url):
        return open_store(url)


def _steps(files: Any, root: str) -> list[str]:
    """List the names of checkpoints in a folder, oldest first, complete or not."""
    return sorted(
        name
        for entry in files.glob(f"{root}/checkpoints/step-*")
        if (name := entry.rstrip("/").rpartition("/")[2]).removeprefix("step-").isdecimal()
    )
