"""A trained agent as plain files in any store of fsspec's: config.toml, weights.safetensors, agent.json."""

from pathlib import Path

from fsspec.core import url_to_fs

from ... import zoo
from .command_line import UsageError
from .config import RunConfig, from_dict
from .urls import is_url, redacted


def is_card(place: str) -> bool:
    """Whether an agent at `place` is one of a card rather than of a run directory."""
    return is_url(place) or (Path(place) / zoo.FACTS).is_file()


def read_card(place: str) -> tuple[RunConfig, zoo.Kept]:
    """The agent of the folder or URL `place`. Raises UsageError."""
    try:
        files, root = url_to_fs(place)
        kept = zoo.read(Path(Path(root).name), lambda name: files.cat_file(f"{root.rstrip('/')}/{name}"))
        return from_dict(RunConfig, kept.config), kept
    except Exception as problem:  # every kind of store fails in its own way
        reason = str(problem).replace(place, redacted(place)).splitlines()
        text = f"{type(problem).__name__}: {reason[0] if reason else ''}"
        raise UsageError(f"{redacted(place)} holds no agent that can be read ({text})") from problem


def write_files(place: str, contents: dict[str, bytes]) -> None:
    """Write files by name into the folder or URL `place`. Raises UsageError."""
    try:
        files, root = url_to_fs(place)
        files.makedirs(root, exist_ok=True)
        for name, content in contents.items():
            files.pipe_file(f"{root.rstrip('/')}/{name}", content)
    except Exception as problem:
        raise UsageError(f"cannot write to {redacted(place)}: {type(problem).__name__}: {problem}") from problem
