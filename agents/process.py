"""What a process that runs networks on a CPU should set before it starts."""

import ctypes
import functools
import platform
import sys
from pathlib import Path

import torch

HEAP_BYTES = 2**30
"""The heap is asked for so much at once, in addresses only: memory comes when it is used."""
KEPT_BYTES = 2**31 - 1
"""Free memory at the top of the heap that is not handed back to the system: the largest number glibc takes."""
LARGEST_HEAP_BLOCK = 2**25
"""Blocks up to this size (the largest glibc allows) come from the heap and can be kept when freed."""
HUGE_PAGE = 2**21

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MADV_HUGEPAGE = 14


def prepare_process(threads: int) -> None:
    """Use `threads` CPU threads per operation, keep freed memory, in large pages."""
    torch.set_num_threads(threads)
    if keep_freed_memory():
        use_huge_pages()


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
