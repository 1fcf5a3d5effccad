"""Modules that a configuration names and that are imported when it is used."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"([^\W\d]\w*(?:\.\w+)*):\w+")
"""`module:name`, as settings name an environment, a core, an algorithm or a tracker."""


def named_modules(config: Mapping[str, Any]) -> list[str]:
    """Modules that a run's saved configuration would import besides engram, as `setting = module:name`."""
    agent, learner = (config.get(part) for part in ("agent", "learner"))
    torso = agent.get("torso") if isinstance(agent, Mapping) else None
    values = {
        "env": config.get("env"),
        "track": config.get("track"),
        "core": agent.get("core") if isinstance(agent, Mapping) else None,
        "torso": torso.get("torso") if isinstance(torso, Mapping) else None,
        "algorithm": learner.get("algorithm") if isinstance(learner, Mapping) else None,
        "imitate": learner.get("imitate") if isinstance(learner, Mapping) else None,
    }
    return [f"{name} = {value}" for name, value in values.items() if isinstance(value, str) and ":" in value]


def refuse_inside(config: Mapping[str, Any], folder: Path) -> None:
    """Raise ValueError if a setting names a module in `folder`: code that came with the run. Imports nothing."""
    for name, value in _texts(config):
        match = _NAMED.fullmatch(value)
        file = match and _file_inside(match[1], folder)
        if file:
            raise ValueError(
                f"{name} is {value!r}, which is {file}: modules in a run directory are not imported; "
                f"if you trust it, move {file.name} out of {shlex.quote(str(folder))}"
            )


def announce_imports(config: Mapping[str, Any], file: Path, fetched: bool = False) -> None:
    """Say on stderr what a configuration file that is not the user's own will import."""
    named = named_modules(config)
    whose = "was fetched" if fetched else "belongs to another user"
    if named and (fetched or file.stat().st_uid != os.getuid()):
        print(f"{file} {whose}; it imports modules found on this machine: {', '.join(named)}", file=sys.stderr)


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """All strings in nested settings, with the names of their settings."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, name)


def _file_inside(module: str, folder: Path) -> Path | None:
    """The first file in `folder` that `import module` may run, links followed or not.

    importlib.util.find_spec cannot be used: it imports the packages around a module.
    """
    words, folders = module.split("."), (folder.absolute(), folder.resolve())
    for entry in {*sys.path, os.getcwd()}:  # actors, too, append the working directory
        for depth in range(1, len(words) + 1):
            place = Path(entry).absolute().joinpath(*words[:depth])
            for name in (f"{stem}{suffix}" for stem in (place, place / "__init__") for suffix in all_suffixes()):
                paths = (Path(name), Path(name).parent.resolve() / Path(name).name, Path(name).resolve())
                if os.path.exists(name) and any(path.is_relative_to(each) for path in paths for each in folders):
                    return paths[0]
    return None
