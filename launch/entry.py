"""Entry points of the command scripts; a command's module is imported when the command runs."""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..base.processes import StopFlag, leave_at_once
from .config.command_line import DRY_RUN, LIST, run_command

_NAMES = ("train", "bench", "play", "check-core", "doctor", "probe", "population", "compare", "export")
_OTHERS = {"rl-eval": "evaluate", "rl-look": "insight", "rl-reproduce": "figures"}
FOLDERS = {f"rl-{name}": name.replace("-", "_") for name in _NAMES} | _OTHERS  # Folder in launch/ of each command


def module_of(command: str) -> str:
    return f"{__package__}.{FOLDERS[command]}.command"


def run(command: str, arguments: Sequence[str] | None = None) -> None:
    if command != "rl-train":
        run_command(command, importlib.import_module(module_of(command)).main, arguments)
    try:
        run_command(command, _train, arguments)
    except SystemExit as end:
        if arguments is None and "ray" in sys.modules:  # threads of a stopped Ray may abort a process that cleans up
            leave_at_once(end.code if isinstance(end.code, int) else 1)
        raise


def _train(arguments: Sequence[str]) -> int:
    if sys.stdout.isatty() and not {"--help", LIST, DRY_RUN} & set(arguments):
        print("starting: loading torch takes a few seconds", flush=True)
    with StopFlag.of_a_command() as stop:  # signals during the import of torch are also handled
        return importlib.import_module(module_of("rl-train")).main(arguments, stop)


def __getattr__(name: str) -> Any:
    """Return the entry point of a script: `rl_train` for `rl-train`."""
    if (command := name.replace("_", "-")) in FOLDERS:
        return partial(run, command)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
