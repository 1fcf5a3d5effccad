"""Every step of a core, recorded from outside: what went in, the state before and the state after."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cores.core import CoreState, map_state


class Trace(NamedTuple):
    """T steps of one environment, with time where a batch is elsewhere: a core's own modules run on all at once."""

    inputs: Tensor
    """[T, D]."""
    before: CoreState
    """Leaves [T, ...]."""
    after: CoreState
    """Leaves [T, ...]."""


@contextmanager
def recorded(core: nn.Module) -> Generator[list[Trace]]:
    """Collects the calls of `core` while it lasts, one batch [B, ...] each; afterwards nothing is left of it."""
    calls: list[Trace] = []

    def note(_: nn.Module, given: tuple[Any, ...], result: tuple[Tensor, CoreState]) -> None:
        calls.append(Trace(given[0], given[1], result[1]))

    handle = core.register_forward_hook(note)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield calls
    finally:
        handle.remove()


def over_time(calls: list[Trace], index: int) -> Trace:
    """The calls of one environment of the batch in a row. Raises ValueError if there are none."""
    if not calls:
        raise ValueError("the core was not called, so there is nothing to show")

    def row(*leaves: Tensor) -> Tensor:
        return torch.stack([leaf[index].detach().cpu() for leaf in leaves])

    before, after = (map_state(row, *(getattr(call, name) for call in calls)) for name in ("before", "after"))
    return Trace(row(*(call.inputs for call in calls)), before, after)
