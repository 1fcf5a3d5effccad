"""Parts of a memory by name, `slot=2` or `pool=5-8`, as masks over its state.

Parts are those of `Core.parts_of_state`; `leaf=controller` selects a leaf in any core. Parts are counted from 1.
"""

import re

import torch

from ...base.errors import EngramError, refuse
from ...base.messages import advice, nearest
from ..cores.core import Core, CoreState, map_named, named_leaves


def mask(core: Core, name: str = "", which: str = "") -> CoreState:
    """Return bool leaves [1, ...], True in the parts `name=which`, or everywhere without a name. Raises ValueError."""
    form = core.initial_state(1)
    leaves = list(named_leaves(form))
    whole = set(leaves if name == "" else ())
    if name == "leaf":
        whole = {leaf for leaf in leaves if f"{leaf}.".startswith(f"{which}.")}
        groups = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
        refuse(not whole, f"leaf is {which!r}; {advice(which, [*leaves, *sorted(groups)])}")
    marked = map_named(lambda leaf, values: torch.full_like(values, leaf in whole, dtype=torch.bool), form)
    axes = [axis for axis in core.parts_of_state if axis.part == name]
    if name not in ("", "leaf") and not axes:
        names = dict.fromkeys(axis.part for axis in core.parts_of_state)
        raise EngramError(f"this core has no part {name!r}; available: {nearest(name, [*names, 'leaf'])}")
    for axis in axes:
        size = getattr(form, axis.leaf).shape[axis.dim]
        count = getattr(core, axis.counted_by) if axis.counted_by else size
        width = size // count
        indices = [n * width + k for n in _parse(name, which, count) for k in range(width)]
        getattr(marked, axis.leaf).index_fill_(axis.dim, torch.tensor(indices), True)
    return marked


def _parse(name: str, which: str, count: int) -> list[int]:
    """Parse `2`, `5-8` or `2,5-8` to indices from 0."""
    indices: list[int] = []
    for text in which.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= count:
            raise EngramError(f"{name} is {which!r}; allowed: 1..{count}, a range (1-{count}), or several (1,{count})")
        indices += range(first - 1, last)
    return indices
