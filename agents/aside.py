"""A second thread for large pieces of a learner's work, in `share` or beside what the first one does, with `aside`.

A learner's backward pass is a chain: the gradient of step t waits for that of step t + 1. The columns of a batch are
chains of their own, and the gradients of the weights are in none. Torch and compiled functions let go of the
interpreter while they compute, so another core can do some of it meanwhile. Results do not depend on whether it does:
the same operations are done, and what they give is added up in the same order.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Done(Generic[R]):
    """What is there already. A Future would need a lock, which torch.compile cannot look into."""

    def __init__(self, value: R) -> None:
        self._value = value

    def result(self) -> R:
        """It."""
        return self._value


Later: TypeAlias = Done[R] | Future[R]
"""What a piece of work returns, once it is done."""

_thread: ThreadPoolExecutor | None = None


class _Local(threading.local):
    aside = False
    """Whether this is the second thread; what it asks for, it does itself."""


_local = _Local()


def use_second_core(use: bool = True) -> None:
    """Let `aside` use another thread from now on, where this process may run on more than one core; or not."""
    global _thread
    if not use or available_cores() == 1:
        _thread = None
    elif _thread is None:
        _thread = ThreadPoolExecutor(1, "aside", _prepare)


def _forget_threads() -> None:
    """A forked child has the variable and not the thread: what it gave away would never be done."""
    global _thread
    _thread = None
    _local.aside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def available_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def aside(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Later[R]:
    """Start `work` beside what the caller does next; works are done in the order of these calls.

    The caller must not change the arguments before the result is there. Work that needs a graph of autograd is done
    at once: other threads record no gradients. So is work that torch.compile looks at.
    """
    if torch.compiler.is_compiling() or _thread is None or _local.aside or torch.is_grad_enabled():
        return Done(work(*args, **kwargs))
    return _thread.submit(work, *args, **kwargs)


def share(work: Callable[[int], R], count: int) -> list[R]:
    """[work(0), ..., work(count - 1)]; each piece is done by whichever thread is free first.

    For work that lets go of the interpreter and needs no gradients.
    """
    results: dict[int, R] = {}
    turns = iter(range(count))

    def take() -> None:
        for turn in turns:
            results[turn] = work(turn)

    if _thread is None or count < 2:
        take()
    else:
        second = _thread.submit(take)
        take()
        if not second.cancel():
            second.result()
    return [results[turn] for turn in range(count)]


def _prepare() -> None:
    _local.aside = True
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
