"""Recording of every step of a core with hooks: inputs, state before and state after."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...base.errors import refuse
from ..cores.core import CoreState, map_state


class Trace(NamedTuple):
    """T steps of one environment, with time on the batch axis, so that a core's modules process all steps at once."""

    inputs: Tensor  # [T, D]
    before: CoreState  # Leaves [T, ...]
    after: CoreState  # Leaves [T, ...]


@contextmanager
def recorded(core: nn.Module) -> Generator[list[Trace]]:
    """Collect the calls of `core`, one batch [B, ...] each, inside a `with` statement; hooks are removed at its end."""
    calls: list[Trace] = []

    def note(_: nn.Module, arguments: tuple[Any, ...], result: tuple[Tensor, CoreState]) -> None:
        calls.append(Trace(arguments[0], arguments[1], result[1]))

    handle = core.register_forward_hook(note)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield calls
    finally:
        handle.remove()


def over_time(calls: list[Trace], index: int) -> Trace:
    """Stack the calls of one environment of the batch. Raises ValueError if there are none."""
    refuse(not calls, "the core was not called, so there is nothing to show")

    def row(*leaves: Tensor) -> Tensor:
        return torch.stack([leaf[index].detach().cpu() for leaf in leaves])

    before, after = (map_state(row, *(getattr(call, name) for call in calls)) for name in ("before", "after"))
    return Trace(row(*(call.inputs for call in calls)), before, after)
