"""A private Ray that starts while torch is imported and before the configuration is read, both of which take seconds.

The words of `rl-train`, and the file that they name, say how many processors that Ray must have. Where the words turn
out to be a mistake it was started for nothing: then this process ends at once, and Ray with it.
"""

import contextlib
import math
import os
import sys
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...base.units import count, number
from ..run.command_line import LIST, VERSION, UsageError, dashed, value_of

WITHOUT_RAY = (
    *("--help", "-h", VERSION, LIST, "--restarts", "--local", "--ray-address", "--no-local", "--act-on"),
    *("--seeds", "--sweep", "--trials", "--jobs"),
)
"""Flags with which a command needs no private Ray, or another process does, or it is better seen later."""
DEFAULTS: dict[str, Any] = {"num_actors": 1, "actor_cpus": 1.0, "local": False, "act_on": "auto", "ray_address": None}
"""Of RunConfig, which cannot be imported without torch; a test compares them."""
MOST = 64
"""Processors up to which a Ray is started early. A larger number may be a mistake, which is seen later."""


class EarlyRay:
    """Starts a private Ray in a thread of its own, which lives as long as that Ray does.

    Linux ends processes that asked for it with the thread that started them. Beside the main thread, Ray installs no
    signal handlers.

    Args:
        num_cpus: processors that Ray is to have.
    """

    def __init__(self, num_cpus: int) -> None:
        self.num_cpus = num_cpus
        self._started, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._hold, daemon=True).start()

    def take(self, num_cpus: int | None) -> None:
        """Wait until Ray is started, for a run that needs so many processors; one with fewer is stopped again.

        None is for a run that needs another Ray. If it could not be started, `start_ray` will meet the same problem and
        say so.
        """
        from .ray_session import stop_ray

        self._started.wait()
        if num_cpus is None or self.num_cpus < num_cpus:
            stop_ray()

    def leave(self, problem: BaseException) -> NoReturn:
        """End this process at once, as this exception would have ended it.

        Also after a run: threads of a stopped Ray may abort a process that tidies up, whatever its exit code was to be.
        """
        if isinstance(problem, SystemExit):
            code = 0 if problem.code is None else problem.code
            leave_at_once(code if isinstance(code, int) else 1)
        sys.excepthook(type(problem), problem, problem.__traceback__)
        leave_at_once(1)

    def end(self) -> None:
        """Let the thread end, after Ray has."""
        self._over.set()

    def _hold(self) -> None:
        with contextlib.suppress(BaseException):  # SystemExit, too, would only end this thread
            self._start()
        self._started.set()
        self._over.wait()

    def _start(self) -> None:
        from .ray_session import start_private

        start_private(self.num_cpus)


def early_ray(words: Sequence[str]) -> EarlyRay | None:
    """Begin to start the Ray that `rl-train` with these words needs; None where it needs none, or this is not clear."""
    num_cpus = cpus_for(words)
    if num_cpus is None:
        return None
    import ray  # pyright: ignore[reportUnusedImport] # noqa: F401  not in the thread, beside torch's import in this one

    return EarlyRay(num_cpus)


def cpus_for(words: Sequence[str]) -> int | None:
    """Processors of the private Ray that these words of `rl-train` ask for; None without one, or if it is not clear."""
    words = dashed(words)
    if any(word.partition("=")[0] in WITHOUT_RAY for word in words):
        return None
    try:
        file, run = value_of("--config", words), value_of("--resume", words)
        if run is not None:
            file = str(Path(run) / "config.toml")
        settings = DEFAULTS | (tomllib.loads(Path(file).read_text("utf-8")) if file else {})
        if settings["local"] or settings["act_on"] != "auto" or settings["ray_address"]:
            return None
        actors = value_of("--num-actors", words) or settings["num_actors"]
        cpus = value_of("--actor-cpus", words) or settings["actor_cpus"]
        found = cpus_needed(None if actors == "auto" else count(str(actors)), number(str(cpus)))
        return found if found <= MOST else None
    except (UsageError, OSError, ValueError, TypeError):
        return None  # it will be said when the words are read


def cpus_needed(num_actors: int | None, cpus_per_actor: float) -> int:
    """Processors that a private Ray says it has, so that actors take turns on too few rather than wait for ever.

    It starts as many workers at once, before there are actors. Without a number of actors it has those of this machine.
    """
    return max(1, math.ceil(num_actors * cpus_per_actor)) if num_actors is not None else os.cpu_count() or 1


def leave_at_once(code: int) -> NoReturn:
    """End this process without the clean-up that Ray would do and could wait in for ever.

    The orphan clean-up ends what it has started. Were that killed here first, Ray's threads in this process would
    notice, and might end it with an exit code of their own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
