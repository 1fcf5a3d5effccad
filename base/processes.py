"""Processes on this machine: which one it is, its tree, its memory and processor time, and the cores it may use."""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

HEAP_BYTES = 2**30
"""The heap is asked for so much at once, in addresses only: memory comes when it is used."""
KEPT_BYTES = 2**31 - 1
"""Free memory at the top of the heap that is not handed back to the system: the largest number glibc takes."""
LARGEST_HEAP_BLOCK = 2**25
"""Blocks up to this size (the largest glibc allows) come from the heap and can be kept when freed."""
HUGE_PAGE = 2**21

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MADV_HUGEPAGE = 14
_PR_SET_PDEATHSIG = 1


def shell_command(name: str) -> str:
    """A command of this Python environment as a shell finds it: by its name, or by its path where PATH lacks it."""
    installed, other = Path(sys.executable).with_name(name), shutil.which(name)
    if not installed.exists() or (other is not None and os.path.samefile(other, installed)):
        return name
    return shlex.quote(str(installed))


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tree(pid: int) -> list[psutil.Process]:
    """Process `pid` and all that descend from it; empty if it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def end_children() -> None:
    """Kill all processes that descend from this one."""
    for each in tree(os.getpid())[1:]:
        with suppress(psutil.Error):
            each.kill()


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux only); for `preexec_fn`."""
    if (libc := _libc()) is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next step; False where there is no glibc.

    By default it gives the activations of a step back to the system and asks for them again at the next one, a
    page fault per 4 KiB: a third of the time of a memory core's step for 128 environments.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: LARGEST_HEAP_BLOCK, _M_TRIM_THRESHOLD: KEPT_BYTES, _M_ARENA_MAX: 1}
    return all([mallopt(*setting) for setting in settings.items()])


def use_huge_pages() -> bool:
    """Have the heap's next gigabyte in pages of 2 MiB; False where the system has none to give.

    The processor remembers where a few thousand pages lie. Looking up one of 4 KiB costs most in a virtual machine,
    whose tables have tables of their own: there small operations of a memory core took up to four times as long.
    """
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
    """Whether the processor is Intel's, as far as the system tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "GenuineIntel" in platform.processor()


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def leave_at_once(code: int) -> NoReturn:
    """End this process without the clean-up that Ray would do and could wait in for ever.

    The orphan clean-up ends what it has started. Were that killed here first, Ray's threads in this process would
    notice, and might end it with an exit code of their own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
