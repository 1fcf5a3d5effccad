"""Modules that a configuration names, which are imported when it is used."""

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
"""`module:name`: the name of a custom environment, core, algorithm or tracker in a setting."""


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
