"""Memory that this process may use: the machine's, a cgroup's limit (containers, batch systems) and `ulimit -v`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from .messages import size_in_words

V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("", "memory.max", "memory.current", "inactive_file")
"""Of the two versions of cgroups: folder below /sys/fs/cgroup, limit, usage, and file pages that count as free."""


class Memory(NamedTuple):
    """A limit of memory in bytes."""

    total: int
    free: int
    """Of it, what new processes can have."""
    owner: str = "this machine has"
    """What limits it, with a verb, for messages."""

    def __str__(self) -> str:
        return f"{self.owner} {size_in_words(self.total)}"


def memory(root: Path = Path("/")) -> Memory:
    """The least of all limits, with the least free memory of all.

    Args:
        root: where `proc` and `sys` are.
    """
    machine = psutil.virtual_memory()
    limits = [Memory(machine.total, machine.available), *_cgroups(root), *address_space()]
    return min(limits, key=lambda each: each.total)._replace(free=max(0, min(each.free for each in limits)))


def address_space() -> Iterator[Memory]:
    """The limit of this process's address space (`ulimit -v`), if there is one."""
    with suppress(ImportError, psutil.Error):  # Windows has no resource
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            yield Memory(limit, limit - psutil.Process().memory_info().vms, "the address space limit (ulimit -v) is")


def own_memory() -> tuple[int, int]:
    """Resident bytes of this process, and those of them that no other process shares."""
    found = psutil.Process().memory_full_info()
    return found.rss, found.uss


def _cgroups(root: Path) -> Iterator[Memory]:
    """Limits of this process's cgroup and those above it, in both versions of cgroups."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, limit, usage, cache = V1 if controllers else V2
        group = Path(path.lstrip("/"))
        for folder in [root / "sys/fs/cgroup" / mount / each for each in (group, *group.parents)]:
            with suppress(OSError, ValueError):  # no such folder in a container, or no limit: "max"
                total = int((folder / limit).read_text())
                pages = dict(each.split() for each in _lines(folder / "memory.stat"))
                free = total - int((folder / usage).read_text()) + int(pages.get(cache, 0))
                yield Memory(total, free, f"the cgroup memory limit ({folder / limit}) is")


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []
