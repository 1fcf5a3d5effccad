"""Processes on this machine: which one it is, its tree, its memory and processor time, and the cores it may use."""

import os
from contextlib import suppress

import psutil


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Bytes of memory of this machine."""
    return psutil.virtual_memory().total


def tree(pid: int) -> list[psutil.Process]:
    """Process `pid` and all that descend from it; empty if it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def tree_memory(pid: int) -> int:
    """Bytes resident in process `pid` and its descendants, each shared page counted once; 0 if it has ended.

    The proportional set size is summed, so Ray's object store, mapped by all of them, is in the sum once. Where the
    system has no such number, the unique set size is.
    """
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):  # it ended while we looked
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total


def tree_cpu_seconds(pid: int) -> float:
    """Processor seconds that process `pid` and its living descendants have used; 0 if it has ended."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
