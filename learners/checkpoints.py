"""Checkpoints on disk: one directory per step, complete or absent, verified before use.

    checkpoints/step-000000123456/
        tensors.pt      tensors by name; `torch.load(..., weights_only=True)` reads it
        state.json      everything else, and the location of each tensor (state_codec.py)
        SHA256SUMS      `sha256sum -c` reads it

A checkpoint is written under a temporary name, synced to disk and renamed, so that a crash or a full disk at
any moment leaves earlier checkpoints unchanged. Loading runs no code from the files. Only one process writes to a
directory at a time.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..base.errors import EngramError
from .state_codec import pack, unpack

FORMAT = 1
_FILES = ("state.json", "tensors.pt")
RENAMED = {"optimiser": "optimizer", "colours": "colors"} | {
    f"core.summariser.{name}": f"core.summarizer.{name}" for name in ("weight", "bias")
}
"""Keys of older versions, with their current names."""
_SUMS = "SHA256SUMS"
FILES = (*_FILES, _SUMS)  # Files of a checkpoint in copying order; without the last one, it is incomplete
_PARTIAL = ".partial-"
_NAME = re.compile(r"step-(\d{12,})(\.old)?")  # `.old`: being replaced by a new checkpoint of the same step

Stamp = tuple[tuple[int, ...], ...]

_log = logging.getLogger(__name__)


class CheckpointError(EngramError):
    """Raised when a checkpoint could not be written or is damaged."""


def save(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` as the checkpoint of `step` and return its path; replace any existing one.

    Args:
        directory: directory of a run's checkpoints; created if missing.
        step: environment steps consumed, at least 0.
        state: nested dicts, lists and tuples of tensors, numpy arrays, numbers, strings and None.

    Raises:
        CheckpointError: writing failed; earlier checkpoints are unchanged.
        TypeError: the state contains a value of another type; the message names its location.
    """
    path = path_of(directory, step)
    document, tensors = pack(state)
    text = json.dumps({"format": FORMAT, "step": step, "state": document}, indent=1, allow_nan=False)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        partial = directory / f"{_PARTIAL}{path.name}"
        try:
            partial.mkdir()
            _write(partial / "state.json", text.encode())
            _write(partial / "tensors.pt", buffer.getbuffer())
            _write(partial / _SUMS, _sums(partial))
            _sync_directory(partial)
            _put_in_place(partial, path)
        except BaseException:
            _sweep(directory)  # removes the unfinished checkpoint, or the one that it has replaced
            raise
    except OSError as problem:
        raise CheckpointError(
            f"cannot write checkpoint {path}: {problem.strerror or problem}; earlier checkpoints remain intact"
        ) from problem
    return path


def load(path: Path) -> dict[str, Any]:
    """Load a saved state, with tensors on the CPU. Raises CheckpointError naming the file and the problem: missing,
    damaged, foreign or in another format."""
    verify(path)
    try:
        document = json.loads((path / "state.json").read_bytes())
        written = document["format"]
        if written != FORMAT:
            raise CheckpointError(f"{path}: format {written} of another engram version; this version reads {FORMAT}")
        _refuse_compressed(path / "tensors.pt")
        tensors = torch.load(path / "tensors.pt", map_location="cpu", weights_only=True)
        return _rename_keys(unpack(document["state"], tensors))
    except pickle.UnpicklingError as problem:
        raise CheckpointError(f"{path / 'tensors.pt'}: rejected: it contains more than tensors") from problem
    except zipfile.BadZipFile as problem:
        raise CheckpointError(f"{path / 'tensors.pt'}: rejected: it is not a zip of tensors ({problem})") from problem
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        raise CheckpointError(f"{path}: not a checkpoint of engram ({problem})") from problem


def _rename_keys(state: Any) -> Any:
    """Rename the keys of older versions in a state."""
    if isinstance(state, dict):
        return {RENAMED.get(key, key): _rename_keys(value) for key, value in state.items()}
    return [_rename_keys(value) for value in state] if isinstance(state, list) else state


def _refuse_compressed(file: Path) -> None:
    """Raise CheckpointError unless the zip's members are uncompressed, so that tensors are no larger than the file."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    size = file.stat().st_size
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > size:
        raise CheckpointError(
            f"{file}: rejected: its members are compressed; allowed: uncompressed members, as written by torch.save"
        )


def verify(path: Path) -> None:
    """Raise CheckpointError naming the file unless all files exist and are unchanged, bit for bit."""
    for name in (_SUMS, *_FILES):
        if not (path / name).is_file():
            raise CheckpointError(f"{path}: not a complete checkpoint, {name} is missing")
    try:
        actual, recorded = _sums(path), (path / _SUMS).read_bytes()
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read: {problem.strerror}") from problem
    for name, line in zip(_FILES, actual.splitlines(keepends=True), strict=True):
        if line not in recorded:
            raise CheckpointError(f"{path / name}: damaged, its checksum differs from the one in {_SUMS}")
    if actual != recorded:
        raise CheckpointError(f"{path / _SUMS}: damaged")


def is_intact(path: Path) -> bool:
    """Whether `path` contains a complete checkpoint, unchanged bit for bit."""
    return _problem_of(path) is None


def latest(directory: Path) -> Path | None:
    """Find the newest intact checkpoint, or None; warn about newer damaged ones without modifying them."""
    return next(intact(directory), None)


def intact(directory: Path) -> Iterator[Path]:
    """Yield intact checkpoints, newest first; warn about damaged ones without modifying them."""
    for path in _list(directory):
        if (problem := _problem_of(path)) is None:
            yield path
        else:
            _log.warning("skipped a damaged checkpoint: %s", problem)


def any_in(directory: Path) -> bool:
    """Whether any checkpoints exist, intact or damaged."""
    return bool(_list(directory))


def prune(directory: Path, keep_last: int, best: Path | None = None) -> list[Path]:
    """Call `Kept.prune` once; all intact checkpoints count as the run's own."""
    return Kept(directory).prune(keep_last, best)


class Kept:
    """Checkpoints of a run in its directory, of which only the newest are kept.

    Files are read and hashed once, and again only if their size or timestamps change.

    Args:
        directory: directory of the checkpoints; existing ones are verified immediately.
        is_own: whether an intact checkpoint belongs to this run; those of other runs are neither counted nor removed.
    """

    def __init__(self, directory: Path, is_own: Callable[[Path], bool] = lambda _: True) -> None:
        self._directory, self._is_own = directory, is_own
        self._checked: dict[Path, tuple[Stamp, bool]] = {}
        self._find()

    def add(self, path: Path) -> None:
        """Register a checkpoint that this process has just written."""
        self._checked[path] = (_stamp(path), True)

    def prune(self, keep_last: int, best: Path | None = None) -> list[Path]:
        """Remove all but the newest `keep_last` (at least 1) and `best`; return the removed ones. Damaged checkpoints
        and foreign files are neither counted nor removed. Raises CheckpointError if a removal fails."""
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}; allowed: at least 1")
        surplus = [path for path in self._find()[keep_last:] if best is None or path.name != best.name]
        try:
            for path in surplus:
                _remove(path)
        except OSError as problem:
            raise CheckpointError(f"cannot remove a checkpoint: {problem}") from problem
        return surplus

    def _find(self) -> list[Path]:
        """Intact checkpoints of the run, newest first."""
        before, self._checked = self._checked, {}
        for path in _list(self._directory):
            stamp = _stamp(path)
            entry = before.get(path)
            if entry is None or entry[0] != stamp:
                entry = (stamp, _problem_of(path) is None and self._is_own(path))
            self._checked[path] = entry
        return [path for path, (_, is_own) in self._checked.items() if is_own]


def path_of(directory: Path, step: int) -> Path:
    """Path of the checkpoint of `step`, which need not exist."""
    return directory / f"step-{step:012d}"


def step_of(path: Path) -> int:
    """Parse the step in a checkpoint's name. Raises CheckpointError for any other name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path}: not the name of a checkpoint; expected step-<number>")
    return int(match[1])


def _list(directory: Path) -> list[Path]:
    """List directories named like checkpoints, newest first; of two with the same step, `.old` is last."""
    if not directory.is_dir():
        return []
    named = [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=lambda path: (step_of(path), not path.suffix), reverse=True)


def _problem_of(path: Path) -> CheckpointError | None:
    try:
        verify(path)
    except CheckpointError as problem:
        return problem
    return None


def _stamp(path: Path) -> Stamp:
    """Size, inode and timestamps of each file, which change with the content."""
    stamps: dict[str, tuple[int, ...]] = dict.fromkeys(FILES, ())
    for name in FILES:
        with contextlib.suppress(OSError):
            status = (path / name).stat()
            stamps[name] = status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return tuple(stamps.values())


def _put_in_place(partial: Path, path: Path) -> None:
    old = path.with_name(f"{path.name}.old")
    if path.exists():
        _remove(old)
        path.rename(old)
    partial.rename(path)
    _sync_directory(path.parent)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a directory after renaming it, so that a crash leaves no partial checkpoint under its name."""
    if path.exists():
        shutil.rmtree(path.rename(path.with_name(f"{_PARTIAL}{path.name}")), ignore_errors=True)


def _sweep(directory: Path) -> None:
    """Remove the directories that an interrupted write or removal has left."""
    for path in directory.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sums(path: Path) -> bytes:
    lines: list[str] = []
    for name in _FILES:
        with (path / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines).encode()


def _write(path: Path, content: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Sync a directory's entries to disk, in addition to the contents of its files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
