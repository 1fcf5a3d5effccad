"""Additional threads for large pieces of a learner's work, which runs without the interpreter's lock.

The number of threads does not change results: pieces are the same, and their results are added in the same order.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ..base.processes import num_cores

R = TypeVar("R")

_others: ThreadPoolExecutor | None = None
_count = 0  # Threads in addition to the caller's
_local = threading.local()  # `helper` is set in the additional threads, which run all their work themselves


def use_threads(count: int) -> None:
    """Set the total number of threads of `share`, at most the number of CPU cores of this process."""
    global _others, _count
    others = max(min(count, num_cores()) - 1, 0)
    if others == _count:
        return
    if _others is not None:
        _others.shutdown(wait=True)
    _count = others
    _others = ThreadPoolExecutor(_count, "learner", become_helper) if _count else None


def num_threads() -> int:
    return _count + 1


def _forget_threads() -> None:
    """Reset a forked child, which inherits the variables but not the threads that would run its work."""
    global _others, _count
    _others, _count, _local.helper = None, 0, False


os.register_at_fork(after_in_child=_forget_threads)


def share(work: Callable[[int], R], count: int) -> list[R]:
    """Return [work(0), ..., work(count - 1)]; each piece runs on the first free thread. The work must release the
    interpreter's lock and must not need gradients."""
    results: dict[int, R] = {}
    turns = iter(range(count))

    def take() -> None:
        for turn in turns:
            results[turn] = work(turn)

    if _others is None or count < 2 or getattr(_local, "helper", False):
        take()
    else:
        helpers = [_others.submit(take) for _ in range(min(_count, count - 1))]
        try:
            take()
        finally:
            busy = [helper for helper in helpers if not helper.cancel()]
        for helper in busy:
            helper.result()
    return [results[turn] for turn in range(count)]


def become_helper() -> None:
    """Make the calling thread a helper, which runs its work alone and records no gradients."""
    _local.helper = True
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
