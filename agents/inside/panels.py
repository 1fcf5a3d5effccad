"""Panels: figures of a memory over the steps of an episode, from a trace.

A core's panels are registered for its class with `panels_of.register`; a core without any gets a heat map of each array
that its `describe` returns.
"""

from collections.abc import Sequence
from functools import singledispatch
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores.core import Core, map_state, named_leaves
from .trace import Trace

Values = NDArray[np.float32]
Scale: TypeAlias = Literal["share", "signed"]  # 0 to 1, or symmetric around 0; curves span their values
MOST_ROWS = 128  # Largest number of rows of a heat map, for legibility and loading time


class Panel(NamedTuple):
    """R quantities at T steps."""

    title: str
    note: str  # Explanation of the panel
    kind: Literal["heat", "lines"]  # A row of colors for each quantity, or a curve for each
    values: Values  # [R, T]
    labels: tuple[str, ...]  # Labels of the R quantities
    scale: Scale = "signed"
    bands: tuple[tuple[str, int], ...] = ()  # Names of a heat map's bands of rows and the first row of each


def values(tensor: Tensor) -> Values:
    """Reshape [T, ...] -> [R, T] for a panel."""
    return tensor.detach().flatten(1).t().contiguous().float().numpy()


def heat(
    title: str, note: str, series: Tensor, labels: Sequence[str], scale: Scale, bands: Sequence[tuple[str, int]] = ()
) -> Panel:
    """Show series [T, ...] as rows of colors."""
    return Panel(title, note, "heat", values(series), tuple(labels), scale, bands=tuple(bands))


def lines(title: str, note: str, series: Tensor, labels: Sequence[str], scale: Scale = "signed") -> Panel:
    """Show series [T, ...] as curves."""
    return Panel(title, note, "lines", values(series), tuple(labels), scale)


def panels(core: Core, trace: Trace) -> list[Panel]:
    """Return all panels of a core: those of its class, then the norms of its state and of the change per step."""
    with torch.no_grad():
        return [*panels_of(core, trace), *size_and_change(trace)]


@singledispatch
def panels_of(core: Core, trace: Trace) -> list[Panel]:
    """Return the panels of a core's class; others have one for every array that they describe."""
    return described(core, trace)


def described(core: Core, trace: Trace) -> list[Panel]:
    return [
        most_active(f"state: {name}", "values of the state", name, values(array))
        for name, array in core.describe(trace.after).items()
    ]


def most_active(title: str, what: str, label: str, series: Values) -> Panel:
    """Show those of the series [R, T] that vary most as rows of colors."""
    rows = liveliest(series, MOST_ROWS)
    note = f"The {len(rows)} of {len(series)} {what} that change most."
    return Panel(title, note, "heat", series[rows], tuple(f"{label} {i}" for i in rows), "signed")


def liveliest(series: Values, most: int) -> NDArray[np.int64]:
    """Return the indices of the `most` series of [R, T] that vary most, in ascending order."""
    return np.sort(np.argsort(-series.std(1), kind="stable")[:most])


def size_and_change(trace: Trace) -> list[Panel]:
    """Show the norm of every leaf, and the relative norm of its change at each step."""
    before, after = (named_leaves(map_state(Tensor.float, state)) for state in (trace.before, trace.after))
    if not after:
        return []
    norms = torch.stack([leaf.norm(dim=1) for leaf in after.values()], 1)
    changes = torch.stack([(leaf - before[name]).norm(dim=1) for name, leaf in after.items()], 1)
    note = "Norm of the change, as a fraction of the norm after the step."
    return [
        lines("size of the state", "Euclidean norm of each part.", norms, tuple(after)),
        lines("change per step", note, changes / norms.clamp(min=1e-8), tuple(after)),
    ]


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Labels `slot 1`, `slot 2`, ..., counted from 1 as in interventions."""
    return tuple(f"{name} {k}" for k in range(1, count + 1))


def each(*names: Sequence[str]) -> tuple[str, ...]:
    """Return all combinations of names, the last varying fastest: labels of a flattened array."""
    return tuple(map(", ".join, product(*names)))
