"""Parts that tests of whole runs share: a tiny configuration, `rl-train` as a process, and how to look at both."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

TINY = [
    *("--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=16", "--seed", "5"),
    *("--env-args", "path_lengths=1", "num_distractors=0", "max_steps=12", "--envs-per-actor", "4"),
    *("--envs-per-update", "4", "--unroll-length", "6", "--log-every", "1", "--conv-channels", "2"),
]
RL_TRAIN = str(Path(sys.executable).with_name("rl-train"))
FOREVER = ("--total-steps", "1000000000")


def start(*words: object, before: tuple[str, ...] = (), **options: Any) -> "subprocess.Popen[str]":
    """`rl-train` with these words, its output in a pipe."""
    command = [*before, RL_TRAIN, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def stop(process: "subprocess.Popen[str]", number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """End a run with a signal; its exit code and output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def wait_for(
    condition: Callable[[], object], seconds: float = 300, process: "subprocess.Popen[str] | None" = None
) -> None:
    """Until it is true; an assertion fails after some seconds, or with its output if the process has ended by then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def rows(run: Path) -> list[dict[str, Any]]:
    """The whole rows of metrics that there are by now."""
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def last_step(run: Path) -> int:
    """The step of the last row, -1 without one."""
    return rows(run)[-1]["step"] if rows(run) else -1


def steps_saved(run: Path) -> list[int]:
    """The steps of all checkpoints, damaged ones too."""
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*") if path.suffix != ".old")


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    """Whether they have all ended."""
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two calls
        return False


def workers(pid: int, name: str = "ActorProcess") -> list[psutil.Process]:
    """Ray's processes of a class among the descendants of `pid`."""
    found: list[psutil.Process] = []
    for each in psutil.Process(pid).children(recursive=True):
        try:
            if f"ray::{name}" in " ".join(each.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found
