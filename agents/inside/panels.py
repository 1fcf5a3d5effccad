"""Panels: figures of a memory over the steps of an episode, from a trace.

A core's panels are registered for its class with `panels_of.register`; a core without any gets a heat map of each array
that its `describe` returns.
"""

from collections.abc import Sequence
from functools import singledispatch
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores.core import Core, named_leaves
from .trace import Trace

Values = NDArray[np.float32]
MOST_ROWS = 128  # Largest number of rows of a heat map, for legibility and loading time


class Panel(NamedTuple):
    """R quantities at T steps."""

    title: str
    note: str  # Explanation of the panel
    kind: Literal["heat", "lines", "matrix"]
    """heat: a row of colors for each quantity; lines: a curve for each; matrix: small tables of the current step."""
    values: Values  # [R, T]; for a matrix, R = groups x rows x columns in C order.
    labels: tuple[str, ...]  # Labels of the R quantities; empty for a matrix.
    scale: Literal["share", "signed", "positive"] = "positive"  # 0 to 1; symmetric around 0; at least 0.
    tables: tuple[tuple[str, ...], ...] = ()  # Names of a matrix's groups, rows and columns
    bands: tuple[tuple[str, int], ...] = ()  # Names of a heat map's bands of rows and the first row of each


def values(tensor: Tensor) -> Values:
    """Reshape [T, ...] -> [R, T] for a panel."""
    return tensor.detach().flatten(1).t().contiguous().float().numpy()


def panels(core: Core, trace: Trace) -> list[Panel]:
    """Return all panels of a core: those of its class, then the norms of its state and of the change per step."""
    with torch.no_grad():
        return [*panels_of(core, trace), *size_and_change(trace)]


@singledispatch
def panels_of(core: Core, trace: Trace) -> list[Panel]:
    """Return the panels of a custom core: every array that it describes."""
    panels: list[Panel] = []
    for name, array in core.describe(trace.after).items():
        series = values(array)
        selected = liveliest(series, MOST_ROWS)
        note = "Each row is one value of the state."
        if len(selected) < len(series):
            note = f"The {len(selected)} of {len(series)} values that change most, in order."
        labels = tuple(f"{name} {i}" for i in selected)
        panels.append(Panel(f"state: {name}", note, "heat", series[selected], labels, "signed"))
    return panels


def liveliest(series: Values, most: int) -> NDArray[np.int64]:
    """Return the indices of the `most` series of [R, T] that vary most, in ascending order."""
    return np.sort(np.argsort(-series.std(1), kind="stable")[:most])


def size_and_change(trace: Trace) -> list[Panel]:
    """Show the norm of every leaf, and the relative norm of its change at each step."""
    before, after = (
        {name: leaf.float() for name, leaf in named_leaves(state).items()} for state in (trace.before, trace.after)
    )
    if not after:
        return []
    norms = torch.stack([after[name].norm(dim=1) for name in after])
    changes = torch.stack([(after[name] - before[name]).norm(dim=1) for name in after])
    share = changes / norms.clamp(min=1e-8)
    return [
        Panel("size of the state", "Euclidean norm of each part.", "lines", norms.numpy(), tuple(after)),
        Panel(
            "change per step",
            "Norm of the change, as a fraction of the norm after the step.",
            "lines",
            share.numpy(),
            tuple(after),
        ),
    ]


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Return labels `slot 1`, `slot 2`, ..., counted from 1 as in interventions."""
    return tuple(f"{name} {k}" for k in range(1, count + 1))


def each(*names: Sequence[str]) -> tuple[str, ...]:
    """Return all combinations of names, the last varying fastest: labels of a flattened array."""
    if len(names) == 1:
        return tuple(names[0])
    return tuple(f"{first}, {rest}" for first in names[0] for rest in each(*names[1:]))
