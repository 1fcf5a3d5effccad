"""Panels: pictures of a memory over the steps of an episode, made from a trace.

Every core has its own panels, registered by its class with `panels_of.register`; one without gets a heat map of the
arrays that its `describe` returns.
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
MOST_ROWS = 128
"""Lines of a heat map: more are neither seen nor loaded quickly."""


class Panel(NamedTuple):
    """R quantities at T steps."""

    title: str
    note: str
    """How to read it."""
    kind: Literal["heat", "lines", "matrix"]
    """heat: a line of color for each quantity; lines: a curve for each; matrix: small tables of the present step."""
    values: Values
    """[R, T]; of a matrix, R = groups x rows x columns in C order."""
    labels: tuple[str, ...]
    """Of the R quantities; of a matrix none."""
    scale: Literal["share", "signed", "positive"] = "positive"
    """0 to 1; around 0; from 0 on."""
    tables: tuple[tuple[str, ...], ...] = ()
    """Of a matrix: names of groups, rows and columns."""
    bands: tuple[tuple[str, int], ...] = ()
    """Of a heat map: names of bands of lines and the first line of each."""


def values(tensor: Tensor) -> Values:
    """[T, ...] -> [R, T] for a panel."""
    return tensor.detach().flatten(1).t().contiguous().float().numpy()


def panels(core: Core, trace: Trace) -> list[Panel]:
    """All panels of a core: its own, then how large its state is and how much each step changes it."""
    with torch.no_grad():
        return [*panels_of(core, trace), *size_and_change(trace)]


@singledispatch
def panels_of(core: Core, trace: Trace) -> list[Panel]:
    """A core of one's own: everything that it describes."""
    found: list[Panel] = []
    for name, array in core.describe(trace.after).items():
        series = values(array)
        kept = liveliest(series, MOST_ROWS)
        note = "Every line is one number of the state."
        if len(kept) < len(series):
            note = f"The {len(kept)} of {len(series)} numbers that change most, in their order."
        labels = tuple(f"{name} {i}" for i in kept)
        found.append(Panel(f"state: {name}", note, "heat", series[kept], labels, "signed"))
    return found


def liveliest(series: Values, most: int) -> NDArray[np.int64]:
    """Of R series [R, T], the indices of the `most` that vary most, in their own order."""
    return np.sort(np.argsort(-series.std(1), kind="stable")[:most])


def size_and_change(trace: Trace) -> list[Panel]:
    """Norm of every leaf, and the norm of its change at each step as a share of it."""
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
            "Norm of what the step changed, as a share of the norm after it.",
            "lines",
            share.numpy(),
            tuple(after),
        ),
    ]


def numbered(name: str, count: int) -> tuple[str, ...]:
    """`slot 1`, `slot 2`, ..: parts are counted from 1, in panels and in interventions."""
    return tuple(f"{name} {k}" for k in range(1, count + 1))


def each(*names: Sequence[str]) -> tuple[str, ...]:
    """All combinations of names, the last varying fastest: labels of a flattened array."""
    if len(names) == 1:
        return tuple(names[0])
    return tuple(f"{first}, {rest}" for first in names[0] for rest in each(*names[1:]))
