"""Checkpoints on disk: one directory per step, complete or absent, verified before use.

    checkpoints/step-000000123456/
        tensors.pt      tensors by name; `torch.load(..., weights_only=True)` reads it
        state.json      everything else, and the location of each tensor (see `pack`)
        SHA256SUMS      `sha256sum -c` reads it

A checkpoint is written under a temporary name, synced to disk and renamed, so a crash or a full disk leaves earlier
ones unchanged. Loading runs no code from the files. Only one process writes to a directory at a time.
"""

import hashlib
import io
import json
import logging
import math
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.errors import EngramError

FORMAT = 1
RENAMED = {"optimiser": "optimizer", "colours": "colors"} | {
    f"core.summariser.{name}": f"core.summarizer.{name}" for name in ("weight", "bias")
}
"""Keys of older versions, with their current names."""
_CONTENT, _SUMS = ("state.json", "tensors.pt"), "SHA256SUMS"
FILES = (*_CONTENT, _SUMS)  # Files of a checkpoint in copying order; without the last one, it is incomplete
_PARTIAL = ".partial-"
_NAME = re.compile(r"step-(\d{12,})(\.old)?")  # `.old`: being replaced by a new checkpoint of the same step

_log = logging.getLogger(__name__)


class CheckpointError(EngramError):
    """Raised when a checkpoint could not be written or is damaged."""


def save(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` as the checkpoint of `step` environment steps and return its path; replace any existing one. Raises
    CheckpointError if writing failed, and the TypeError of `pack`; earlier checkpoints are unchanged."""
    path = path_of(directory, step)
    document, tensors = pack(state)
    text = json.dumps({"format": FORMAT, "step": step, "state": document}, indent=1, allow_nan=False)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        unfinished = directory / f"{_PARTIAL}{path.name}"
        unfinished.mkdir()
        _write(unfinished / "state.json", text.encode())
        _write(unfinished / "tensors.pt", buffer.getbuffer())
        _write(unfinished / _SUMS, _sums(unfinished))
        _sync_directory(unfinished)
        old = path.with_name(f"{path.name}.old")
        if path.exists():
            _remove(old)
            path.rename(old)
        unfinished.rename(path)
        _sync_directory(directory)
        _remove(old)
    except OSError as problem:
        raise CheckpointError(
            f"cannot write checkpoint {path}: {problem.strerror or problem}; earlier checkpoints remain intact"
        ) from problem
    finally:
        _sweep(directory)  # removes an unfinished checkpoint, or one that is replaced
    return path


def load(path: Path) -> dict[str, Any]:
    """Load a saved state, with tensors on the CPU. Raises CheckpointError naming the file and the problem."""
    verify(path)
    try:
        document = json.loads((path / "state.json").read_bytes())
        written = document["format"]
        if written != FORMAT:
            raise CheckpointError(f"{path}: format {written} of another engram version; this version reads {FORMAT}")
        tensors = torch.load(path / "tensors.pt", map_location="cpu", weights_only=True)
        return _rename_keys(unpack(document["state"], tensors))
    except pickle.UnpicklingError as problem:
        raise CheckpointError(f"{path / 'tensors.pt'}: rejected: it contains more than tensors") from problem
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        raise CheckpointError(f"{path}: not a checkpoint of engram ({problem})") from problem


def _rename_keys(state: Any) -> Any:
    if isinstance(state, dict):
        return {RENAMED.get(key, key): _rename_keys(value) for key, value in state.items()}
    return [_rename_keys(value) for value in state] if isinstance(state, list) else state


def verify(path: Path) -> None:
    """Raise CheckpointError naming the file unless all files exist and are unchanged, bit for bit."""
    if missing := [name for name in (_SUMS, *_CONTENT) if not (path / name).is_file()]:
        raise CheckpointError(f"{path}: not a complete checkpoint, {missing[0]} is missing")
    try:
        actual, recorded = _sums(path), (path / _SUMS).read_bytes()
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read: {problem.strerror}") from problem
    for name, line in zip(_CONTENT, actual.splitlines(keepends=True), strict=True):
        if line not in recorded:
            raise CheckpointError(f"{path / name}: damaged, its checksum differs from the one in {_SUMS}")
    if actual != recorded:
        raise CheckpointError(f"{path / _SUMS}: damaged")


def is_intact(path: Path, warn: bool = False) -> bool:
    """Whether `path` contains a complete checkpoint, unchanged bit for bit; with `warn`, log the problem if not."""
    try:
        verify(path)
    except CheckpointError as problem:
        if warn:
            _log.warning("skipped a damaged checkpoint: %s", problem)
        return False
    return True


def latest(directory: Path) -> Path | None:
    """Find the newest intact checkpoint, or None; warn about newer damaged ones without modifying them."""
    return next((path for path in all_in(directory) if is_intact(path, warn=True)), None)


class Kept:
    """Checkpoints in a run's directory, of which only the newest are kept. Each existing one is verified only once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._intact: dict[Path, bool] = {}
        self._find()

    def add(self, path: Path) -> None:
        """Register a checkpoint that this process has just written."""
        self._intact[path] = True

    def prune(self, keep_last: int, best: Path | None = None) -> list[Path]:
        """Remove all but the newest `keep_last` (at least 1) and `best`; return the removed ones. Damaged checkpoints
        and foreign files are neither counted nor removed. Raises CheckpointError if a removal fails."""
        surplus = [path for path in self._find()[keep_last:] if best is None or path.name != best.name]
        try:
            for path in surplus:
                _remove(path)
        except OSError as problem:
            raise CheckpointError(f"cannot remove a checkpoint: {problem}") from problem
        return surplus

    def _find(self) -> list[Path]:
        """Intact checkpoints, newest first."""
        paths = all_in(self._directory)
        self._intact |= {path: is_intact(path) for path in paths if path not in self._intact}
        return [path for path in paths if self._intact[path]]


def path_of(directory: Path, step: int) -> Path:
    """Path of the checkpoint of `step`, which need not exist."""
    return directory / f"step-{step:012d}"


def step_of(path: Path) -> int:
    """Parse the step in a checkpoint's name. Raises CheckpointError for any other name."""
    if match := _NAME.fullmatch(path.name):
        return int(match[1])
    raise CheckpointError(f"{path}: not the name of a checkpoint; expected step-<number>")


def all_in(directory: Path) -> list[Path]:
    """List directories named like checkpoints, newest first; of two with the same step, `.old` is last."""
    if not directory.is_dir():
        return []
    named = [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=lambda path: (step_of(path), not path.suffix), reverse=True)


def _remove(path: Path) -> None:
    """Remove a directory after renaming it, so that a crash leaves no partial checkpoint under its name."""
    if path.exists():
        shutil.rmtree(path.rename(path.with_name(f"{_PARTIAL}{path.name}")), ignore_errors=True)


def _sweep(directory: Path) -> None:
    """Remove the directories that an interrupted write or removal has left."""
    for path in directory.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sums(path: Path) -> bytes:
    sums = b""
    for name in _CONTENT:
        with (path / name).open("rb") as file:
            sums += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode()
    return sums


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


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Pack a state into a document (for `json.dumps`) and tensors, whose names are their paths in the state.

        None, bool, int, str, finite float, list, dict with plain string keys      as themselves
        torch tensor            {"$tensor": name}      comes back on the CPU, contiguous, without gradient
        numpy array             {"$array": name}       comes back as a numpy array
        numpy scalar            {"$scalar": name}      comes back as a numpy scalar
        tuple                   {"$tuple": [...]}      a NamedTuple comes back as a plain tuple
        other dicts             {"$items": [[key, value], ...]}     keys are str or int; a str may start with "$"
        nan, inf, -inf          {"$float": "nan"}      JSON lacks these values

    Raises TypeError naming the path of a value of another type.
    """
    tensors: dict[str, Tensor] = {}

    def add(tensor: Tensor, path: tuple[str, ...]) -> str:
        name = "/".join(path)
        while name in tensors:  # {"a": {"b": x}, "a/b": y}
            name += "'"
        tensors[name] = tensor
        return name

    def packed(value: Any, path: tuple[str, ...]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, Tensor):
            # A copy, since saving a view would save the whole underlying storage.
            return {"$tensor": add(value.detach().cpu().clone(memory_format=torch.contiguous_format), path)}
        if isinstance(value, np.ndarray | np.generic):
            tag = "$array" if isinstance(value, np.ndarray) else "$scalar"
            return {tag: add(torch.from_numpy(np.array(value, order="C")), path)}
        if isinstance(value, Mapping):
            if wrong := [key for key in value if type(key) not in (str, int)]:
                raise TypeError(f"state at {'/'.join(path)} has the key {wrong[0]!r}; allowed: str or int")
            items = [[key, packed(part, (*path, str(key)))] for key, part in value.items()]
            plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
            return dict(items) if plain else {"$items": items}
        if isinstance(value, list | tuple):
            parts = [packed(part, (*path, str(i))) for i, part in enumerate(value)]
            return {"$tuple": parts} if isinstance(value, tuple) else parts
        raise TypeError(
            f"state at {'/'.join(path)} is a {type(value).__name__}; allowed: tensors, numpy arrays, None, bool, int, "
            "float, str, and lists, tuples and dicts of them"
        )

    return packed(state, ()), tensors


def unpack(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Restore a packed state. Raises KeyError or ValueError if the document is not from `pack`."""
    if isinstance(document, list):
        return [unpack(part, tensors) for part in document]
    if not isinstance(document, dict):
        return document
    match next((key for key in document if key.startswith("$")), None):
        case None:
            return {key: unpack(value, tensors) for key, value in document.items()}
        case "$tensor":
            return tensors[document["$tensor"]]
        case "$array":
            return tensors[document["$array"]].numpy()
        case "$scalar":
            return tensors[document["$scalar"]].numpy()[()]
        case "$tuple":
            return tuple(unpack(part, tensors) for part in document["$tuple"])
        case "$items":
            return {key: unpack(value, tensors) for key, value in document["$items"]}
        case "$float":
            return float(document["$float"])
        case tag:
            raise ValueError(f"unknown tag {tag!r}")
