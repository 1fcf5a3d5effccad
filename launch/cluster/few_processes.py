"""A private Ray of its three main processes and the actors', listening on the loopback address alone.

`ray.init` also starts an autoscaler, a dashboard, a reader of logs and two agents (for metrics and for environments of
packages). A run uses none of them. Each is a Python process of 80 MB, together they need as much of the processor as
half of all else before the first update, and Ray waits for three of them. Ray has no settings for it, so the functions
that would start them are replaced while a `with` statement runs.

Raylet, Ray's process on every machine, cannot do without the two agents: `agent_stand_in.py` runs in their place.
"""

import contextlib
import functools
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ray._private import parameter, ray_constants, services

LOOPBACK = "127.0.0.1"
AGENTS = {
    "dashboard_agent_command": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "runtime_env_agent_command": ("runtime_env_agent_port",),
}
"""Raylet's flags with the agents' command lines, and the ports that each agent tells."""
PRELOADED = ("engram.actors.remote.slot", "engram.actors.factory")
"""Modules that a worker imports before it hears what it is to do."""
SETTINGS: dict[str, Any] = {"enable_metrics_collection": False, "preload_python_modules": list(PRELOADED)}
"""Ray's own settings of such a Ray."""


@contextlib.contextmanager
def loopback_only() -> Generator[None]:
    """Let Ray listen on the loopback address alone: on Linux it would replace that with one that others can reach."""
    with _replaced(services, resolve_ip_for_localhost=_loopback, get_node_ip_address=_loopback):
        yield


@contextlib.contextmanager
def without_signal_handlers() -> Generator[None]:
    """Let Ray leave this process's signals alone: its handler takes SIGTERM, prints a stack and ends the process."""
    with _replaced(ray_constants, RAY_DISABLE_FAILURE_SIGNAL_HANDLER=True):
        yield


@contextlib.contextmanager
def few_processes() -> Generator[None]:
    """Let `ray.init` start nothing that a run does not use."""
    start: Any = services.start_ray_process
    parameters: Any = parameter.RayParams

    def start_process(command: list[str], kind: str, *args: Any, **kwargs: Any) -> Any:
        return start(with_stand_ins(command) if kind == "raylet" else command, kind, *args, **kwargs)

    lean = functools.partial(parameters, no_monitor=True, include_log_monitor=False)
    with (
        _replaced(parameter, RayParams=lean),
        _replaced(services, start_api_server=lambda *_, **__: ("", None), start_ray_process=start_process),
    ):
        yield


def with_stand_ins(command: list[str]) -> list[str]:
    """Raylet's command line with the stand-in for each of its agents."""
    values = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("agent_stand_in.py"))]
    stand_ins = {
        f"--{flag}=": subprocess.list2cmdline([*program, values["session_dir"], values["node_id"], *ports])
        for flag, ports in AGENTS.items()
    }
    return [next((flag + line for flag, line in stand_ins.items() if word.startswith(flag)), word) for word in command]


def _loopback(*_: Any, **__: Any) -> str:
    return LOOPBACK


@contextlib.contextmanager
def _replaced(module: Any, **values: Any) -> Generator[None]:
    """Let names of a module have these values, as far as it has the names."""
    before = {name: getattr(module, name) for name in values if hasattr(module, name)}
    for name in before:
        setattr(module, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
