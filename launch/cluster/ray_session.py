"""The Ray that a run's actors live in: a private one, started and stopped with the run, or a cluster that is there.

Both ask for Ray's token (its default since 2.59): nobody else on the machine or the network can give the actors work.
The token file `~/.ray/auth_token` or RAY_AUTH_TOKEN holds it; a run's files and messages never do.
"""

import contextlib
import logging
import os
import socket
from pathlib import Path

import ray
from ray.exceptions import RayError

from ..train.command_line import UsageError
from . import orphans as janitor

OBJECT_STORE_BYTES = 1 << 30
"""Room for unrolls in flight: far more than two per actor ever take, small enough for containers."""
ANSWER_SECONDS = 10.0
"""In which a cluster's head must answer."""
START_ATTEMPTS = 5
SLOW_START = "timed out during startup"
"""What Ray says when its processes take longer than half a minute, as on a machine that does much else."""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
"""Environment of every actor: its parallelism is other actors."""


def start_ray(num_actors: int, address: str | None = None) -> None:
    """Start a private Ray, or with an `address` join the cluster there; nothing if this process has one already."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        _start_private(num_actors)
    else:
        _join(address)
    hide_token()


def token_file() -> Path:
    """Where Ray keeps its token, unless RAY_AUTH_TOKEN holds it."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def hide_token() -> None:
    """Let nobody else read the token: Ray writes it readable for everyone."""
    with contextlib.suppress(OSError):
        token_file().chmod(0o600)


def _start_private(num_actors: int) -> None:
    """Ray on this machine alone, its dashboard off; environment variables reach the actors through its processes."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves actors beside any other work
    janitor.hire()
    for _ in range(START_ATTEMPTS):
        try:
            ray.init(
                address="local",  # also inside a job of a cluster, where RAY_ADDRESS says otherwise
                num_cpus=max(num_actors, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
            )
            return
        except Exception as problem:  # Ray has no class of its own for it
            if SLOW_START not in str(problem):
                raise
            ray.shutdown()
    raise UsageError(
        f"Ray's processes did not start in {START_ATTEMPTS} times half a minute: the machine does too much else; "
        "--local needs no other process"
    )


def _join(address: str) -> None:
    """Become a driver of a running cluster; `ray.shutdown` then leaves it, and it ends this run's actors by itself."""
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()  # Ray alone would try for minutes
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": ONE_THREAD},
        )
    except (OSError, RuntimeError, ValueError, RayError) as problem:
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise UsageError(
            f"--ray-address {address}: cannot join a cluster ({lines[0]}); run on one of its machines, where "
            "`ray status` works, or leave --ray-address out for a private Ray"
        ) from problem
