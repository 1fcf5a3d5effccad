"""Entry points of the command scripts: a signal while torch and numpy are imported ends a command with one line.

This module imports the standard library only, and engram imports it before anything else.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

_NAMES = ("train", "bench", "play", "check-core", "look", "doctor", "probe", "population", "compare", "export")
FOLDERS = {f"rl-{name}": name.replace("-", "_") for name in _NAMES} | {"rl-eval": "evaluate", "rl-reproduce": "figures"}
"""Module in launch/ of each command."""

TRAIN = "rl-train"
"""The command that also ends orderly, with 0, after SIGTERM, SIGHUP and SIGUSR1."""
INTERRUPTED = 130


def refuse_other_distributions(folder: Path) -> None:
    """Exit a command, or raise ImportError, if another distribution has a package `engram` in the same folder."""
    for record in folder.glob("engram*.dist-info/RECORD"):
        name, _, release = record.parent.name.removesuffix(".dist-info").partition("-")
        if name != "engram_rl" and "\nengram/__init__.py," in "\n" + record.read_text("utf-8"):
            line = (
                f"the package {name} {release} has installed another module engram over engram-rl in {folder}: "
                f"pip uninstall {name}, then pip install --force-reinstall --no-deps engram-rl"
            )
            if os.path.basename(sys.argv[0]) in FOLDERS:
                print(line, file=sys.stderr)
                sys.exit(2)
            raise ImportError(line)


def module_of(command: str) -> str:
    """Name of the module of a command."""
    return f"{__package__}.{FOLDERS[command]}.command"


@contextlib.contextmanager
def starting() -> Generator[None]:
    """In this context, Ctrl-C ends the process at once, without a traceback, if its program is one of the commands."""
    command = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if command not in FOLDERS or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        # No exception, which a library may convert during its import; no print, which may be in progress.
        if command == TRAIN:
            os.write(1, f"stopped ({signal.Signals(number).name}) before training began\n".encode())
            os._exit(0)
        os.write(2, f"{command}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    heard = stops if command == TRAIN else (signal.SIGINT,)
    handlers = {number: signal.getsignal(number) for number in heard}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(command: str) -> None:
    """Run a command."""
    with starting():
        module = importlib.import_module(module_of(command))
    try:
        module.run()
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would print a traceback at exit


refuse_other_distributions(Path(__file__).parents[2])


def __getattr__(name: str) -> Any:
    """The entry point of a script: `rl_train` of `rl-train`."""
    if (command := name.replace("_", "-")) in FOLDERS:
        return partial(_run, command)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
