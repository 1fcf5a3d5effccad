"""Further threads for large pieces of a learner's work, in `share` or beside what the first one does, with `beside`.

A learner's backward pass is a chain: the gradient of step t waits for that of step t + 1. The environments of a batch
are chains of their own, and the gradients of the weights are in none. Torch and compiled functions let go of the
interpreter while they compute, so other cores can do some of it meanwhile. Results do not depend on how many there are:
the pieces are the same, and what they give is added up in the same order.
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
    """A result that is there already. A Future would need a lock, which torch.compile cannot look into."""

    def __init__(self, value: R) -> None:
        self._value = value

    def result(self) -> R:
        """The value."""
        return self._value


Later: TypeAlias = Done[R] | Future[R]
"""The result of a piece of work, once it is done."""

_others: ThreadPoolExecutor | None = None
_count = 0
"""Threads besides the caller's."""


class _Local(threading.local):
    helper = False
    """Whether this is one of the further threads; what it asks for, it does itself."""


_local = _Local()


def use_threads(count: int) -> None:
    """Let `beside` and `share` use `count` threads in all from now on; no more than this process has cores."""
    global _others, _count
    count = min(count, num_cores())
    if count - 1 == _count:
        return
    if _others is not None:
        _others.shutdown(wait=True)
    _count = max(count - 1, 0)
    _others = ThreadPoolExecutor(_count, "learner", become_helper) if _count else None


def num_threads() -> int:
    """Threads that `beside` and `share` use in all."""
    return _count + 1


def _forget_threads() -> None:
    """A forked child has the variables and not the threads: what it gave away would never be done."""
    global _others, _count
    _others, _count = None, 0
    _local.helper = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def beside(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Later[R]:
    """Start `work` beside what the caller does next.

    The caller must not change the arguments before the result is there. Work that needs a graph of autograd is done
    at once: other threads record no gradients. So is work that torch.compile looks at.
    """
    if torch.compiler.is_compiling() or _others is None or _local.helper or torch.is_grad_enabled():
        return Done(work(*args, **kwargs))
    return _others.submit(work, *args, **kwargs)


def share(work: Callable[[int], R], count: int) -> list[R]:
    """[work(0), ..., work(count - 1)]; each piece is done by whichever thread is free first.

    For work that lets go of the interpreter and needs no gradients.
    """
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
    """Make the calling thread one that does alone what it is given, without recording gradients."""
    _local.helper = True
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
