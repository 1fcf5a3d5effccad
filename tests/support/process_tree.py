"""A process with its descendants, and the memory of all."""

from contextlib import suppress

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """Return process `pid` and its descendants; an empty list if the process has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def tree_memory(pid: int) -> int:
    """Resident bytes of process `pid` and its descendants; 0 if it has ended. Proportional set sizes are summed, so
    Ray's object store, which all of them map, counts once."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):  # the process has ended
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total
