"""Entry points of the command scripts; a command's module is imported when the command runs."""

import importlib
from typing import Any

_NAMES = ("train", "bench", "play", "check-core", "look", "doctor", "probe", "population", "compare", "export")
FOLDERS = {f"rl-{name}": name.replace("-", "_") for name in _NAMES} | {"rl-eval": "evaluate", "rl-reproduce": "figures"}
"""Folder in launch/ of each command."""


def module_of(command: str) -> str:
    """Name of the module of a command."""
    return f"{__package__}.{FOLDERS[command]}.command"


def __getattr__(name: str) -> Any:
    """The entry point of a script: `rl_train` of `rl-train`."""
    if (command := name.replace("_", "-")) in FOLDERS:
        return importlib.import_module(module_of(command)).run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
