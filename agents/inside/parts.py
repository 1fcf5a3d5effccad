"""Parts of a memory by name, `slot=2` or `pool=5-8`, as masks over its state.

Parts are those of `Core.parts_of_state`; `leaf=controller` selects a leaf in any core. Parts are counted from 1.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ...base.errors import refuse
from ...base.messages import advice, nearest
from ..cores.core import Core, CoreState, map_named, map_state, named_leaves


def mask(core: Core, name: str = "", which: str = "") -> CoreState:
    """Return bool leaves [1, ...], True in the parts `name=which`, or everywhere without a name. Raises ValueError."""
    form = core.initial_state(1)
    if not name:
        return map_state(lambda leaf: torch.ones_like(leaf, dtype=torch.bool), form)
    if name == "leaf":
        leaves = list(named_leaves(form))
        groups = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
        refuse(which not in (*leaves, *groups), f"leaf is {which!r}; {advice(which, [*leaves, *sorted(groups)])}")
        return _mark(form, {leaf: None for leaf in leaves if leaf == which or leaf.startswith(f"{which}.")})
    names = dict.fromkeys(axis.part for axis in core.parts_of_state)
    refuse(name not in names, f"this core has no part {name!r}; available: {nearest(name, [*names, 'leaf'])}")
    cuts: dict[str, tuple[int, list[int]]] = {}
    for axis in core.parts_of_state:
        if axis.part == name:
            size = getattr(form, axis.leaf).shape[axis.dim]
            count = getattr(core, axis.counted_by) if axis.counted_by else size
            width = size // count
            indices = [n * width + k for n in _parse(name, which, count) for k in range(width)]
            cuts[axis.leaf] = (axis.dim, indices)
    return _mark(form, cuts)


def _parse(name: str, which: str, count: int) -> list[int]:
    """Parse `2`, `5-8` or `2,5-8` to indices from 0."""
    indices: list[int] = []
    for text in which.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= count:
            raise ValueError(
                f"{name} is {which!r}; allowed: 1..{count}, a range such as 1-{count}, or several: 1,{count}"
            )
        indices += range(first - 1, last)
    return indices


def _mark(form: CoreState, selected: Mapping[str, tuple[int, list[int]] | None]) -> CoreState:
    """Return a mask that is True in selected leaves; with (dimension, indices), only at these indices."""

    def mark(name: str, leaf: Tensor) -> Tensor:
        empty = torch.zeros_like(leaf, dtype=torch.bool)
        cut = selected.get(name)
        if cut is not None:
            return empty.index_fill(cut[0], torch.tensor(cut[1]), True)
        return ~empty if name in selected else empty

    return map_named(mark, form)
