"""Modules that a configuration names and that are imported when it is used."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from ...base.errors import EngramError
from .settings.plain import flat_settings

_NAMED = re.compile(r"([^\W\d]\w*(?:\.\w+)*):\w+")
"""`module:name`: a setting's way to name an environment, a core, an algorithm or a tracker."""
_IMPORTED = ("env", "track", "agent.core", "agent.torso.torso", "learner.algorithm", "learner.imitate")


def named_modules(config: Mapping[str, Any]) -> list[str]:
    """Modules that a run's saved configuration would import in addition to engram, as `setting = module:name`."""
    values = dict(flat_settings(config))
    named = {name.rpartition(".")[2]: values.get(name) for name in _IMPORTED}
    return [f"{name} = {value}" for name, value in named.items() if isinstance(value, str) and ":" in value]


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


def announce_imports(config: Mapping[str, Any], file: Path, fetched: bool = False) -> None:
    """Print to stderr the modules that a configuration file of another author will import."""
    named = named_modules(config)
    if named and (fetched or file.stat().st_uid != os.getuid()):
        whose = "was fetched" if fetched else "belongs to another user"
        print(f"{file} {whose}; it imports modules found on this machine: {', '.join(named)}", file=sys.stderr)


def _file_inside(module: str, folder: Path) -> Path | None:
    """The first file in `folder` that `import module` may run, links followed or not.

    importlib.util.find_spec cannot be used: it imports the packages around a module.
    """
    parts, folders = module.split("."), (folder.absolute(), folder.resolve())
    for entry in {*sys.path, os.getcwd()}:  # actors also append the working directory
        for depth in range(1, len(parts) + 1):
            place = Path(entry).absolute().joinpath(*parts[:depth])
            for name in (f"{stem}{suffix}" for stem in (place, place / "__init__") for suffix in all_suffixes()):
                paths = (Path(name), Path(name).parent.resolve() / Path(name).name, Path(name).resolve())
                if os.path.exists(name) and any(path.is_relative_to(each) for path in paths for each in folders):
                    return paths[0]
    return None
