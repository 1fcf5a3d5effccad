"""Memory that this process may use: the machine's, a cgroup's limit (containers, batch systems) and `ulimit -v`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from .messages import size_in_words


class Memory(NamedTuple):
    """Memory limit in bytes."""

    total: int
    free: int  # Bytes that new processes can use
    owner: str = "this machine has"  # Subject and verb of a message about the limit

    def __str__(self) -> str:
        return f"{self.owner} {size_in_words(self.total)}"


def memory(root: Path = Path("/")) -> Memory:
    """Return the smallest of all limits, with the smallest amount of free memory among them. `root` contains `proc`
    and `sys`."""
    machine = psutil.virtual_memory()
    limits = [Memory(machine.total, machine.available), *_cgroups(root), *address_space()]
    return min(limits, key=lambda limit: limit.total)._replace(free=max(0, min(limit.free for limit in limits)))


def address_space() -> Iterator[Memory]:
    """Yield the limit of this process's address space (`ulimit -v`), if any."""
    with suppress(ImportError, psutil.Error):  # Windows has no module `resource`
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            yield Memory(limit, limit - psutil.Process().memory_info().vms, "the address space limit (ulimit -v) is")


def own_memory() -> tuple[int, int]:
    """Resident bytes of this process, and how many of them it shares with no other process."""
    usage = psutil.Process().memory_full_info()
    return usage.rss, usage.uss


def _cgroups(root: Path) -> Iterator[Memory]:
    """Yield the limits of this process's cgroup and its ancestors (cgroup version 2)."""
    group = next((line[3:] for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "/").lstrip("/")
    for folder in [root / "sys/fs/cgroup" / parent for parent in (group, *Path(group).parents)]:
        with suppress(OSError, ValueError):  # a container may lack the folder; "max" means no limit
            total = int((folder / "memory.max").read_text())
            pages = dict(entry.split() for entry in _lines(folder / "memory.stat"))
            free = total - int((folder / "memory.current").read_text()) + int(pages.get("inactive_file", 0))
            yield Memory(total, free, f"the cgroup memory limit ({folder / 'memory.max'}) is")


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []
