"""Ray for a run's actors: a private instance, started and stopped with the run, or an existing cluster.

Both require Ray's token, from `~/.ray/auth_token` or RAY_AUTH_TOKEN, so that no other user can use the actors.
"""

import contextlib
import logging
import math
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import parameter, ray_constants, services
from ray.exceptions import RayError
from ray.job_config import JobConfig

from ...base.errors import MISTAKE, NOT_AVAILABLE, EngramError, refuse
from ...base.processes import private_folder, writable_home
from . import orphans

LOOPBACK = "127.0.0.1"
PRELOADED = ("engram.actors.remote.slot", "engram.actors.factory")  # Imported by workers that wait for their actors
OBJECT_STORE_BYTES = 1 << 30  # For unrolls in flight: more than two per actor need, small enough for containers
ANSWER_SECONDS = 10.0  # Seconds within which a cluster's head must respond
STOP_SECONDS = 10.0  # Seconds within which Ray must stop; otherwise this process ends, and the orphan cleanup kills Ray
SLOW_START = "timed out during startup"  # Ray's message after half a minute, as on a busy machine
AGENT_PORTS = {
    "dashboard_agent_command": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "runtime_env_agent_command": ("runtime_env_agent_port",),
}
"""Raylet's flags with the command lines of its agents, and the files from which raylet reads each agent's ports."""
NO_AGENT = (
    *("sh", "-c"),
    "IFS=; for port; do case $port in /*) echo -1 > $port.new; mv $port.new $port;; esac; done; "
    "while kill -0 $RAY_RAYLET_PID; do sleep 1; done",
    "agent",
)
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}  # For actors


def start_ray(
    num_actors: int | None, address: str | None = None, cpus_per_actor: float = 1.0, num_learners: int = 1
) -> None:
    """Start a private Ray for `num_actors` actors (None: one per CPU), or join a cluster, unless Ray is running."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)  # Ray warns that it does not handle SIGTERM, which is intended
    if address is None:
        start_private(cpus_needed(num_actors, cpus_per_actor, num_learners))
    else:
        _join(address)
    with contextlib.suppress(OSError):  # Ray creates its token file readable by all
        _token_file().chmod(0o600)


def require_gpus(num_actors: int, gpus_per_actor: float, num_learners: int = 0) -> None:
    """Raise EngramError if Ray has too few GPUs for learners or actors, which would wait forever."""
    num_gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_per_actor or num_learners else 0
    allowed = f"at most {num_gpus}, the GPUs in Ray, or --device cpu"
    refuse(num_gpus < num_learners, f"num_learners is {num_learners}; allowed with --device cuda: {allowed}")
    # An actor uses only one GPU: two actors of 0.6 do not fit on one.
    room = num_gpus * int(1 / gpus_per_actor + 1e-9) if gpus_per_actor else num_actors
    allowed = f"a value at which {num_actors} fit, or --actor-gpus 0"
    text = f"--actor-gpus {gpus_per_actor:g}: Ray has {num_gpus} GPUs, with room for {room} such actors"
    refuse(room < num_actors, f"{text}; allowed: {allowed}")


def start_private(num_cpus: int) -> None:
    """Start Ray on this machine only; the actors inherit environment variables from its processes."""
    if not _token_is_kept():  # otherwise Ray fails with a traceback; only this Ray needs the token
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, starves actors if anything else runs
    try:  # Ray's default folder is accessible to everyone
        sessions = private_folder("engram-ray", os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    except OSError as problem:
        raise EngramError(f"{problem}; set RAY_TMPDIR to another folder for Ray's sockets", NOT_AVAILABLE) from problem
    _clean_ups.append((orphans.start_clean_up(sessions), sessions))
    try:
        with loopback_only(), without_signal_handlers(), few_processes():
            ray.init(
                address="local",  # also inside a job of a cluster, where RAY_ADDRESS is set
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
                job_config=_Job(),
                _node_ip_address=LOOPBACK,
                _temp_dir=str(sessions),
                _system_config={"enable_metrics_collection": False, "preload_python_modules": list(PRELOADED)},
            )
    except Exception as problem:  # Ray has no specific exception for this
        if SLOW_START not in str(problem):
            raise
        text = "Ray's processes did not start in half a minute: the machine is overloaded; --local does not need Ray"
        raise EngramError(text, NOT_AVAILABLE) from problem


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))


def _token_is_kept() -> bool:
    """Whether Ray can read or create its token file."""
    file = _token_file()
    if os.path.lexists(file) or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return os.access(file, os.R_OK)
    return os.access(file.parent, os.W_OK) if file.parent.exists() else writable_home() is not None


def stop_ray() -> bool:
    """Stop a private Ray or leave a cluster. If this returns False, the process should end with `os._exit`: Ray's exit
    handlers would wait forever."""
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    ending.join(STOP_SECONDS)
    return not ending.is_alive()


# Orphan cleanup processes of this process, and the parent folders of its private Ray sessions
_clean_ups: list[tuple["subprocess.Popen[bytes]", Path]] = []


def end_clean_ups() -> None:
    """End the orphan cleanup of stopped private Ray sessions, in a program that continues."""
    while _clean_ups:
        process, sessions = _clean_ups.pop()
        process.kill()
        process.communicate()
        for folder in sessions.glob(f"session_*_{os.getpid()}"):
            shutil.rmtree(folder, ignore_errors=True)


class _Job(JobConfig):
    """Job whose processes do not search for modules in the working directory and the script's directory first, where a
    user's `queue.py` would shadow the standard library's."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # then Ray omits both


def cpus_needed(num_actors: int | None, cpus_per_actor: float, num_learners: int = 1) -> int:
    """Number of CPUs for a private Ray to declare, so that actors share scarce CPUs and do not wait forever."""
    actors = max(1, math.ceil(num_actors * cpus_per_actor)) if num_actors is not None else os.cpu_count() or 1
    return actors + num_learners - 1  # the first learner is not a Ray process


def loopback_only() -> AbstractContextManager[None]:
    """Make Ray listen on the loopback address only: on Linux, it would use an address that others can reach."""
    return _patch(services, resolve_ip_for_localhost=_loopback, get_node_ip_address=_loopback)


def without_signal_handlers() -> AbstractContextManager[None]:
    """Keep Ray from handling this process's signals: its SIGTERM handler prints a stack trace and ends the process."""
    return _patch(ray_constants, RAY_DISABLE_FAILURE_SIGNAL_HANDLER=True)


@contextlib.contextmanager
def few_processes() -> Generator[None]:
    """Keep Ray from starting its autoscaler, dashboard, log reader and two agents, which no run uses: Python processes
    of 80 MB that delay the first update by 2 s."""
    start_process: Any = services.start_ray_process

    def start(command: list[str], kind: str, *args: Any, **kwargs: Any) -> Any:
        return start_process(_without_agents(command) if kind == "raylet" else command, kind, *args, **kwargs)

    parameters: Any = parameter.RayParams
    lean = partial(parameters, no_monitor=True, include_log_monitor=False)
    api: dict[str, Any] = {"start_api_server": lambda *_, **__: ("", None), "start_ray_process": start}
    with _patch(parameter, RayParams=lean), _patch(services, **api):
        yield


def _without_agents(command: list[str]) -> list[str]:
    """Replace each agent, which raylet requires in its command line, with a shell that reports the agent's ports as
    unused and exits when raylet does."""
    values = dict(text[2:].split("=", 1) for text in command if text.startswith("--") and "=" in text)
    for agent, ports in AGENT_PORTS.items():
        files = [f"{values['session_dir']}/{port}_{values['node_id']}" for port in ports]
        shell = f"--{agent}={subprocess.list2cmdline([*NO_AGENT, *files])}"
        command = [shell if text.startswith(f"--{agent}=") else text for text in command]
    return command


def _loopback(*_: Any, **__: Any) -> str:
    return LOOPBACK


@contextlib.contextmanager
def _patch(module: Any, **values: Any) -> Generator[None]:
    before = {name: getattr(module, name) for name in values if hasattr(module, name)}
    vars(module).update({name: values[name] for name in before})
    try:
        yield
    finally:
        vars(module).update(before)


def _join(address: str) -> None:
    """Join a running cluster. Raises EngramError: for an invalid address, or NOT_AVAILABLE if no cluster responds."""
    resolved = address
    if address == "auto":  # the cluster recorded by `ray start`; Ray would join any running one, even a private one
        resolved = os.environ.get("RAY_ADDRESS") or services.find_bootstrap_address(None) or ""
    host, _, port = resolved.rpartition(":")
    advice = "run on one of its machines, where `ray status` works, or omit --ray-address for a private Ray"
    message = f"--ray-address {address}: cannot join a cluster ({{}}); {advice}"
    refuse(not host or not port.isdecimal(), message.format("there is none on this machine, or it is not HOST:PORT"))
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()  # Ray would try for minutes
        with without_signal_handlers():
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            ray.init(address=resolved, **quiet, runtime_env={"env_vars": ONE_THREAD}, job_config=_Job())
    except (OSError, OverflowError, RuntimeError, ValueError, RayError) as problem:
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise EngramError(message.format(reason), MISTAKE if address == "auto" else NOT_AVAILABLE) from problem
