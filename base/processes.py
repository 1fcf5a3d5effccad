"""Processes on this machine: their tree, memory, usable cores and folders, and signals that request a stop."""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import psutil

from .errors import size_in_words

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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_children() -> None:
    """Kill all descendants of this process."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux only); for `preexec_fn`."""
    if (libc := _libc()) is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Memory(NamedTuple):
    """Memory limit in bytes."""

    total: int
    free: int  # Bytes that new processes can use
    owner: str = "this machine has"  # Subject and verb of a message about the limit

    def __str__(self) -> str:
        return f"{self.owner} {size_in_words(self.total)}"


def memory(root: Path = Path("/")) -> Memory:
    """Memory that this process may use: the smallest limit of the machine, its cgroups (containers, batch systems) and
    `ulimit -v`, with the smallest amount of free memory among them. `root` contains `proc` and `sys`."""
    machine = psutil.virtual_memory()
    limits = [Memory(machine.total, machine.available), *_cgroups(root)]
    with suppress(ImportError, psutil.Error):  # Windows has no module `resource`
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            free = limit - psutil.Process().memory_info().vms
            limits.append(Memory(limit, free, "the address space limit (ulimit -v) is"))
    return min(limits, key=lambda limit: limit.total)._replace(free=max(0, min(limit.free for limit in limits)))


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


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory; return False without glibc. By default, it returns a step's memory to the system and
    requests it again for the next step: a third of a core's time for 128 environments."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: LARGEST_HEAP_BLOCK, _M_TRIM_THRESHOLD: KEPT_BYTES, _M_ARENA_MAX: 1}
    return all([mallopt(*setting) for setting in settings.items()])


def use_huge_pages() -> bool:
    """Use 2 MiB pages for the heap's next gigabyte; return False if the system has none. With 4 KiB pages, small
    operations took up to four times as long in a virtual machine, whose page tables are nested."""
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


def writable_home() -> Path | None:
    """Return the home directory; None if the user has no writable one, as in many containers."""
    home = Path(os.path.expanduser("~"))  # Path.home() raises for a user missing from /etc/passwd
    return home if home.is_absolute() and os.access(home, os.W_OK | os.X_OK) else None


def private_folder(name: str, parent: str | None = None) -> Path:
    """Return the folder `NAME-UID`, created if missing, which no other user can read or write, in `parent` or the
    folder for temporary files. Raises OSError, such as PermissionError if the name belongs to another user."""
    folder = Path(parent or tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(0o700)
    return folder


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


class StopFlag:
    """Flag that a signal sets to request a stop after the current update; a second SIGINT interrupts at once.

    Args:
        signals: signals to handle inside the `with` statement, which may be nested; () outside the main thread.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.reason = ""
        self._signals = signals
        self._previous: list[dict[signal.Signals, Any]] = []  # Handlers from before each `with` statement

    @classmethod
    def of_a_command(cls) -> "StopFlag":
        """Return a flag for all signals in the main thread, for none in other threads."""
        return cls(cls.SIGNALS if threading.current_thread() is threading.main_thread() else ())

    def __enter__(self) -> "StopFlag":
        self._previous.append({signum: signal.signal(signum, self._note) for signum in self._signals})
        return self

    def renew(self) -> None:
        """Reinstall the handlers after a library has replaced them."""
        for signum in self._signals:
            signal.signal(signum, self._note)

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.pop().items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _: FrameType | None) -> None:
        if self.reason and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(signum).name
