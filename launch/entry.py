"""Entry points of the command scripts; a command's module is imported when the command runs."""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from .config.command_line import run_command

_NAMES = ("train", "bench", "play", "check-core", "doctor", "probe", "population", "compare", "export")
_OTHERS = {"rl-eval": "evaluate", "rl-look": "insight", "rl-reproduce": "figures"}
FOLDERS = {f"rl-{name}": name.replace("-", "_") for name in _NAMES} | _OTHERS  # Folder in launch/ of each command


def module_of(command: str) -> str:
    return f"{__package__}.{FOLDERS[command]}.command"


def run(command: str, arguments: Sequence[str] | None = None) -> None:
    module = importlib.import_module(module_of(command))
    if command == "rl-train":  # handles signals from the start
        module.run(arguments)
    run_command(command, module.main, arguments)


def __getattr__(name: str) -> Any:
    """Return the entry point of a script: `rl_train` for `rl-train`."""
    if (command := name.replace("_", "-")) in FOLDERS:
        return partial(run, command)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
