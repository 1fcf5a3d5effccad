"""Memory that this process may use: the machine's, a cgroup's limit (containers, batch systems) and `ulimit -v`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from .messages import size_in_words

V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("", "memory.max", "memory.current", "inactive_file")
"""Names in the two cgroup versions: folder in /sys/fs/cgroup, limit, usage, and file pages that count as free."""


class Memory(NamedTuple):
    """Memory limit in bytes."""

    total: int
    free: int  # Bytes that new processes can use
    owner: str = "this machine has"  # Subject and verb of a message about the limit

    def __str__(self) -> str:
        return f"{self.owner} {size_in_words(self.total)}"


def memory(root: Path = Path("/")) -> Memory:
    """Return the smallest of all limits, with the smallest amount of free memory among them.

    Args:
        root: directory that contains `proc` and `sys`.
    """
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
    """Yield the limits of this process's cgroup and its ancestors, in both cgroup versions."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, limit, usage, cache = V1 if controllers else V2
        group = Path(path.lstrip("/"))
        for folder in [root / "sys/fs/cgroup" / mount / parent for parent in (group, *group.parents)]:
            with suppress(OSError, ValueError):  # a container may lack the folder; "max" means no limit
                total = int((folder / limit).read_text())
                pages = dict(entry.split() for entry in _lines(folder / "memory.stat"))
                free = total - int((folder / usage).read_text()) + int(pages.get(cache, 0))
                yield Memory(total, free, f"the cgroup memory limit ({folder / limit}) is")


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []
