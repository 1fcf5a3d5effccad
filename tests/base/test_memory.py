"""The memory that a process may use: the least of what limits it."""

import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engram.base.processes import memory

MIB = 2**20


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("inside", [True, False], ids=["container", "batch job"])
def test_the_least_limit_of_the_cgroups_counts(tmp_path: Path, inside: bool) -> None:
    """In a container the group's path does not exist below /sys/fs/cgroup, whose own files are the container's."""
    write(tmp_path / "proc/self/cgroup", "0::/job/step")
    group = tmp_path / "sys/fs/cgroup" / ("" if inside else "job")
    write(group / "memory.max", f"{700 * MIB}\n")
    write(group / "memory.current", f"{500 * MIB}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {100 * MIB}\n")
    if not inside:
        write(group / "step" / "memory.max", "max\n")
        write(group / "step" / "memory.current", "0\n")
    found = memory(tmp_path)
    assert (found.total, found.free) == (700 * MIB, 300 * MIB)
    assert str(found) == f"the cgroup memory limit ({group / 'memory.max'}) is 734 MB"


def test_without_limits_it_is_that_of_the_machine(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this process has a limit of its address space")
    found = memory(tmp_path)
    assert found.total == psutil.virtual_memory().total
    assert str(found).startswith("this machine has ")


def test_the_address_space_is_a_limit() -> None:
    limit = 1024 * MIB
    program = "from engram.base.processes import memory; found = memory(); print(found.total, found)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{limit} the address space limit (ulimit -v) is 1.07 GB"
