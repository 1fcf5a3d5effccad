"""Facts about one machine for rl-doctor; the same function runs here and on every node of a cluster."""

import os
import platform
import shutil
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from ...base.memory import memory
from ...base.processes import num_cores
from ..metrics.provenance import PACKAGES, machine, package_version

PORTS = {6379: "a cluster's head", 8265: "Ray's dashboard", 6006: "TensorBoard"}
"""Ports that a cluster and the pages of a run use, all on request; a private Ray takes whatever is free."""


class Facts(NamedTuple):
    """One machine, as a process on it sees it. Sizes are bytes."""

    name: str
    python: str
    versions: dict[str, str | None]
    cores: int
    """That this run's processes may use."""
    gpus: list[str]
    memory: int
    """Free, as the system and the container's limit allow."""
    shared_memory: int
    """Free in /dev/shm."""
    files: int
    """Files that a process may open, after raising its own limit, as Ray does."""
    temporary: int
    """Free for temporary files."""
    temporary_used: float
    """Fraction of the temporary files' disk that is taken."""
    threads: str | None
    """OMP_NUM_THREADS, if set."""
    taken_ports: list[int]
    """Those of PORTS that somebody listens on, on localhost."""


def look() -> Facts:
    """The facts of the machine that this process is on."""
    disk = shutil.disk_usage(tempfile.gettempdir())
    return Facts(
        name=socket.gethostname(),
        python=platform.python_version(),
        versions={name: package_version(name) for name in PACKAGES},
        cores=num_cores(),
        gpus=machine()["gpus"],
        memory=memory().free,
        shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        files=_open_files(),
        temporary=disk.free,
        temporary_used=1 - disk.free / disk.total,
        threads=os.environ.get("OMP_NUM_THREADS"),
        taken_ports=[port for port in PORTS if _listening(port)],
    )


def cuda_problem() -> str:
    """Why torch finds no GPU although the machine has one, or nothing."""
    if torch.cuda.is_available() or not Path("/proc/driver/nvidia/version").exists():
        return ""
    return f"torch {torch.__version__} has no CUDA" if torch.version.cuda is None else "torch cannot use its driver"


def _open_files() -> int:
    import resource  # not on Windows

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if hard == resource.RLIM_INFINITY else hard


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
