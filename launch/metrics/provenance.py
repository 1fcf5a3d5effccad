"""Machine, commit and versions of a measurement: the facts in every benchmark's result."""

import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ...base.processes import memory, num_cores

PACKAGES = ("engram", "torch", "numpy", "numba", "gymnasium", "ray")


def provenance(*packages: str) -> dict[str, Any]:
    """Date, commit, machine and versions of PACKAGES and `packages`, for the header of a result's JSON."""
    versions = {name: package_version(name) for name in (*PACKAGES, *packages)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions,
    }


def machine() -> dict[str, Any]:
    """CPU, cores, memory, operating system and GPUs."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        processor = next((value.strip() for key, _, value in pairs if key.strip() == "model name"), processor)
    return {
        "processor": processor,
        "cores": num_cores(),
        "memory_gb": round(memory().total / 2**30, 1),
        "system": platform.platform(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def commit() -> str | None:
    """The commit of the running code, with "-dirty" if files differ from it; None outside a git checkout."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    with suppress(OSError, subprocess.TimeoutExpired):
        result = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10)
        return result.stdout.strip() or None


def package_version(package: str) -> str | None:
    """The version of an installed package, or None; for engram, that of the running code."""
    if package == "engram":
        return sys.modules[__name__.partition(".")[0]].__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None
