"""Additional threads for large pieces of a learner's work, shared (`share`) or concurrent (`submit`).

A learner's backward pass is a chain: the gradient of step t needs that of step t + 1. Each environment of a batch is a
separate chain, and the gradients of the weights are outside of all chains. Torch and compiled functions release the
interpreter's lock while they compute, so other CPU cores can work concurrently. The number of threads does not change
results: the pieces are the same, and their results are added in the same order.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import torch

from ..base.processes import num_cores

P = ParamSpec("P")
R = TypeVar("R")


class Done(Generic[R]):
    """Available result. A Future would need a lock, which torch.compile cannot trace."""

    def __init__(self, value: R) -> None:
        self._value = value

    def result(self) -> R:
        """Return the value."""
        return self._value


Later: TypeAlias = Done[R] | Future[R]  # Result of a piece of work, available once it is done

_others: ThreadPoolExecutor | None = None
_count = 0  # Threads in addition to the caller's


class _Local(threading.local):
    helper = False  # Whether this is one of the additional threads, which run all their work themselves


_local = _Local()


def use_threads(count: int) -> None:
    """Set the total number of threads of `submit` and `share`, at most the number of CPU cores of this process."""
    global _others, _count
    count = min(count, num_cores())
    if count - 1 == _count:
        return
    if _others is not None:
        _others.shutdown(wait=True)
    _count = max(count - 1, 0)
    _others = ThreadPoolExecutor(_count, "learner", become_helper) if _count else None


def num_threads() -> int:
    """Return the total number of threads of `submit` and `share`."""
    return _count + 1


def _forget_threads() -> None:
    """Reset a forked child, which inherits the variables but not the threads that would run its work."""
    global _others, _count
    _others, _count = None, 0
    _local.helper = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def submit(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Later[R]:
    """Start `work` concurrently with the caller. The caller must not change the arguments before the result is
    available. Work that records an autograd graph runs immediately, since other threads record no gradients; so does
    work that torch.compile traces."""
    if torch.compiler.is_compiling() or _others is None or _local.helper or torch.is_grad_enabled():
        return Done(work(*args, **kwargs))
    return _others.submit(work, *args, **kwargs)


def share(work: Callable[[int], R], count: int) -> list[R]:
    """Return [work(0), ..., work(count - 1)]; each piece runs on the first free thread. The work must release the
    interpreter's lock and must not need gradients."""
    results: dict[int, R] = {}
    turns = iter(range(count))

    def take() -> None:
        for turn in turns:
            results[turn] = work(turn)

    if _others is None or _local.helper or count < 2:
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
