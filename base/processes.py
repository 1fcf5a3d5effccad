"""Processes on this machine: their identity, tree, memory, CPU time and usable cores."""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

HEAP_BYTES = 2**30  # Bytes by which the heap grows in advance; only addresses are reserved until the memory is used
KEPT_BYTES = 2**31 - 1  # Free memory at the top of the heap that stays with the process: the largest value for glibc
LARGEST_HEAP_BLOCK = 2**25  # Largest block allocated from the heap, where it can stay when freed: the same
HUGE_PAGE = 2**21

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MADV_HUGEPAGE = 14
_PR_SET_PDEATHSIG = 1


def shell_command(name: str) -> str:
    """Shell command `name` of this Python environment: the name, or a path if the name would not run this command."""
    installed, other = Path(sys.executable).with_name(name), shutil.which(name)
    if not installed.exists() or (other is not None and os.path.samefile(other, installed)):
        return name
    return shlex.quote(str(installed))


def num_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tree(pid: int) -> list[psutil.Process]:
    """Return process `pid` and its descendants; an empty list if the process has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def end_children() -> None:
    """Kill all descendants of this process."""
    for process in tree(os.getpid())[1:]:
        with suppress(psutil.Error):
            process.kill()


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux only); for `preexec_fn`."""
    if (libc := _libc()) is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def tree_memory(pid: int) -> int:
    """Resident bytes of process `pid` and its descendants; 0 if it has ended. Proportional set sizes are summed, so
    Ray's object store, which all of them map, counts once."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):  # the process has ended
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next step; return False without glibc. By default, it returns the memory of a
    step's activations to the system and requests it again for the next step, with a page fault per 4 KiB: a third of
    the time of a memory core's step for 128 environments."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: LARGEST_HEAP_BLOCK, _M_TRIM_THRESHOLD: KEPT_BYTES, _M_ARENA_MAX: 1}
    return all([mallopt(*setting) for setting in settings.items()])


def use_huge_pages() -> bool:
    """Use 2 MiB pages for the heap's next gigabyte; return False if the system has none. The CPU caches the addresses
    of a few thousand pages; other lookups are slowest in a virtual machine, whose page tables are nested: with 4 KiB
    pages, small operations of a memory core took up to four times as long there."""
    libc = _libc()
    if libc is None or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        return False
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = LARGEST_HEAP_BLOCK - HUGE_PAGE
    blocks = [libc.malloc(size) for _ in range(HEAP_BYTES // LARGEST_HEAP_BLOCK)]
    try:
        starts = [-(-block // HUGE_PAGE) * HUGE_PAGE for block in blocks if block]
        return all([libc.madvise(start, size - HUGE_PAGE, _MADV_HUGEPAGE) == 0 for start in starts])
    finally:
        for block in blocks:
            libc.free(block)


@functools.cache
def on_intel() -> bool:
    """Whether the system reports an Intel CPU."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "GenuineIntel" in platform.processor()


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def leave_at_once(code: int) -> NoReturn:
    """Exit without Ray's cleanup, which could block forever. The cleanup of orphans ends the child processes: killing
    them here first would alert Ray's threads, which might exit with another code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def interface(address: str) -> str:
    """Name of this machine's network interface with `address`; empty if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if any(entry.address == address for entry in entries)), "")


@contextmanager
def environment(**values: str) -> Generator[None]:
    """Temporarily set environment variables that are not set yet; ignore empty values."""
    new = {name: value for name, value in values.items() if value and name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
