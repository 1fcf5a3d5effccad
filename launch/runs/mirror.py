"""Copies of a run's checkpoints, configuration and logs at any URL that fsspec can write to (s3://, gs://, ...).

A separate thread copies checkpoints, so training does not wait for the network. SHA256SUMS is written last: an
interrupted copy fails its checksums and does not count as a checkpoint. An error causes a warning.
"""

import queue
import shutil
import threading
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from ...base.errors import file_errors, refuse, user_errors
from ...learners import checkpoints
from ..config.plain import first_line, open_store, redacted, store_errors
from . import saved
from .directory import CONFIG, RunDirectory, new_path, refuse_inside, resume_command

LAST_WAIT = 60.0  # Seconds that a run waits at its end for the last checkpoint to be copied


class Mirror:
    """Copying of checkpoints to a URL, one at a time; of several waiting ones, only the newest is copied.

    Every copy includes the `extra_files` that exist. The newest `keep` checkpoints and those in the run directory stay.
    """

    def __init__(self, url: str, extra_files: Sequence[Path], keep: int, warn: Callable[[str], None]) -> None:
        with store_errors(f"cannot use {redacted(url)}", url):
            self._files, self._root = open_store(url)
        self._extra_files, self._keep, self._warn = extra_files, keep, warn
        self._secret, self._url = url, redacted(url)
        self._newest: Path | None = None
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()  # None ends the thread
        self._thread = threading.Thread(target=self._work, name="checkpoint mirror", daemon=True)
        self._thread.start()

    def push(self, path: Path) -> None:
        """Schedule a copy of the checkpoint at `path`, after the current copy."""
        self._newest = path
        self._waiting.put(path)

    def close(self) -> None:
        """Wait for the last copy, with a time limit."""
        self._waiting.put(None)
        self._thread.join(LAST_WAIT)
        if self._thread.is_alive():
            self._warn(f"the last checkpoint is not at {self._url} after {LAST_WAIT:.0f} s; it is in the run directory")

    def _work(self) -> None:
        while path := self._waiting.get():
            if path is not self._newest:  # a newer one is waiting
                continue
            try:
                self._copy(path)
            except Exception as problem:  # each store raises different exceptions
                why = first_line(problem, self._secret)
                self._warn(f"checkpoint {path.name} is not at {self._url}: {why}; training continues")

    def _copy(self, path: Path) -> None:
        """Copy a checkpoint, then remove the oldest ones that are no longer in the run directory either."""
        contents = {name: (path / name).read_bytes() for name in checkpoints.FILES}  # before the run removes them
        folder = f"{self._root}/checkpoints"
        self._files.makedirs(f"{folder}/{path.name}", exist_ok=True)
        for file in filter(Path.exists, self._extra_files):
            self._files.pipe_file(f"{self._root}/{file.name}", file.read_bytes())
        for name, content in contents.items():
            self._files.pipe_file(f"{folder}/{path.name}/{name}", content)
        for name in _checkpoints(self._files, self._root)[: -self._keep]:
            if not (path.parent / name).exists():
                self._files.rm(f"{folder}/{name}", recursive=True)


def refuse_taken(url: str | None) -> None:
    """Raise EngramError if `url` already contains a run's checkpoints, or cannot be read."""
    if url is not None:
        with store_errors(f"cannot access {redacted(url)}", url):
            files, root = open_store(url)
            taken = files.exists(f"{root}/{CONFIG}")
        continuing = resume_command(redacted(url))
        refuse(taken, f"--checkpoint-url {redacted(url)} contains a run; to continue it: {continuing}")


def fetch(url: str, target: str | None) -> Path:
    """Make a run directory (`target`, or a new one under `runs`) from the run at `url`, ready to resume: the newest
    intact checkpoint, its best checkpoint, the configuration and the logs. Raises EngramError."""
    with store_errors(f"{redacted(url)} contains no run", url):
        files, root = open_store(url)
        config = files.cat_file(f"{root}/{CONFIG}")
        names = _checkpoints(files, root)
    if isinstance(files, LocalFileSystem):
        with user_errors(redacted(url)):
            refuse_inside(tomllib.loads(config.decode()), Path(root))
    run = Path(target) if target else new_path(redacted(url).rstrip("/").rpartition("/")[2])
    refuse(run.exists() and any(run.iterdir()), f"{run} is not empty; to continue the run there: {resume_command(run)}")
    directory = RunDirectory(run)

    def fetch_checkpoint(name: str) -> bool:
        path = directory.checkpoints / name
        with file_errors(f"cannot write to {run}"):
            path.mkdir(parents=True)
        try:
            for file in checkpoints.FILES:
                files.get_file(f"{root}/checkpoints/{name}/{file}", str(path / file))
            checkpoints.verify(path)
        except Exception as problem:  # each store raises different exceptions
            shutil.rmtree(path, ignore_errors=True)
            print(f"skipped a checkpoint at {redacted(url)}: {first_line(problem, url)}")
            return False
        return True

    newest = next(filter(fetch_checkpoint, reversed(names)), "")
    refuse(not newest, f"{redacted(url)} has no intact checkpoint to resume from")
    best = checkpoints.load(directory.checkpoints / newest).get("best")
    name = best and checkpoints.path_of(directory.checkpoints, saved.Best(*best).step).name
    if name in names and name != newest:
        fetch_checkpoint(name)
    for log in (directory.metrics_file, directory.population_file):
        if files.exists(f"{root}/{log.name}"):
            files.get_file(f"{root}/{log.name}", str(log))
    (run / CONFIG).write_bytes(config)
    return run


def _checkpoints(files: Any, root: str) -> list[str]:
    """List the names of checkpoints, oldest first, complete or not."""
    names = (entry.rstrip("/").rpartition("/")[2] for entry in files.glob(f"{root}/checkpoints/step-*"))
    return sorted(name for name in names if name.removeprefix("step-").isdecimal())
