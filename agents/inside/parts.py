"""Parts of a memory by name, `slot=2` or `pool=5-8`, as masks over its state.

Cores register their parts by class (`axes_of.register`); leaves can be named in every core:
`leaf=controller`. Parts are counted from 1.
"""

import re
from collections.abc import Mapping
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from ...base.messages import advice, nearest
from ..cores.concrete import Concrete
from ..cores.conv_lstm import ConvLSTM
from ..cores.core import Core, CoreState, map_state, named_leaves
from ..cores.gru import GRU
from ..cores.gtrxl import GTrXL
from ..cores.linear.ffm import FFM
from ..cores.linear.lru import LRU
from ..cores.linear.min_gru import MinGRU
from ..cores.lstm import LSTM
from ..cores.parts.stack import Stack
from ..cores.rmc import RMC


class Axis(NamedTuple):
    """Layout of `parts` parts in a leaf [B, ...]: `width` places each, along dimension `dim`."""

    leaf: str
    dim: int
    parts: int
    width: int = 1


@singledispatch
def axes_of(core: Core) -> dict[str, list[Axis]]:
    """Parts of a core by name; a custom core has only leaves."""
    return {}


@axes_of.register
def _(core: RMC) -> dict[str, list[Axis]]:
    slots, heads = core.num_slots, core.num_heads
    return {"slot": [Axis("memory", 1, slots)], "head": [Axis("memory", 2, heads, core.width // heads)]}


@axes_of.register
def _(core: Concrete) -> dict[str, list[Axis]]:
    return {"pool": [Axis("pools", 1, core.num_pools)]}


@axes_of.register
def _(core: LSTM) -> dict[str, list[Axis]]:
    return {"unit": [Axis(leaf, 1, core.output_size) for leaf in ("h", "c")]}


@axes_of.register
def _(core: GRU) -> dict[str, list[Axis]]:
    return {"unit": [Axis("h", 1, core.output_size)]}


@axes_of.register
def _(core: ConvLSTM) -> dict[str, list[Axis]]:
    return {"channel": [Axis(leaf, 2, core.hidden_channels) for leaf in ("h", "c")]}


@axes_of.register
def _(core: LRU) -> dict[str, list[Axis]]:
    return {"block": [Axis("h", 1, core.num_blocks)], "unit": [Axis("h", 2, core.state_size)]}


@axes_of.register
def _(core: FFM) -> dict[str, list[Axis]]:
    return {"trace": [Axis("traces", 1, core.memory_size)]}


@axes_of.register
def _(core: MinGRU) -> dict[str, list[Axis]]:
    return {"layer": [Axis("h", 1, len(core.layers))], "unit": [Axis("h", 2, core.output_size)]}


@axes_of.register
def _(core: Stack) -> dict[str, list[Axis]]:
    leaves = named_leaves(core.initial_state_form())
    return {"layer": [Axis(leaf, 1, len(core.mixers)) for leaf in leaves]}


@axes_of.register
def _(core: GTrXL) -> dict[str, list[Axis]]:
    """A place is a step of the window, the last one the newest."""
    return {"layer": [Axis("past", 1, len(core.layers))], "place": [Axis("past", 2, core.memory_length)]}


def mask(core: Core, name: str = "", which: str = "") -> CoreState:
    """Bool leaves [1, ...], True in the parts of `name=which`, without a name everywhere. Raises ValueError."""
    form = core.initial_state(1)
    if not name:
        return map_state(lambda leaf: torch.ones_like(leaf, dtype=torch.bool), form)
    if name == "leaf":
        leaves = list(named_leaves(form))
        groups = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
        if which not in (*leaves, *groups):
            raise ValueError(f"leaf is {which!r}; {advice(which, [*leaves, *sorted(groups)])}")
        return _marked(form, {leaf: None for leaf in leaves if leaf == which or leaf.startswith(f"{which}.")})
    axes = axes_of(core)
    if name not in axes:
        raise ValueError(f"this core has no part {name!r}; it has: {nearest(name, [*axes, 'leaf'])}")
    chosen = _chosen(name, which, axes[name][0].parts)
    cuts = {
        axis.leaf: (axis.dim, [n * axis.width + k for n in chosen for k in range(axis.width)]) for axis in axes[name]
    }
    return _marked(form, cuts)


def _chosen(name: str, which: str, count: int) -> list[int]:
    """Parse `2`, `5-8` or `2,5-8` to indices from 0."""
    chosen: list[int] = []
    for text in which.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= count:
            raise ValueError(
                f"{name} is {which!r}; allowed: 1..{count}, a range such as 1-{count}, or several: 1,{count}"
            )
        chosen += range(first - 1, last)
    return chosen


def _marked(form: CoreState, selected: Mapping[str, tuple[int, list[int]] | None], path: str = "") -> CoreState:
    """Mask that is True in selected leaves; with (dimension, places) only in those places."""
    if isinstance(form, Tensor):
        marked = torch.zeros_like(form, dtype=torch.bool)
        if path in selected:
            cut = selected[path]
            marked = ~marked if cut is None else marked.index_fill(cut[0], torch.tensor(cut[1]), True)
        return marked
    parts = zip(form._fields, form, strict=True)
    return type(form)(*(_marked(part, selected, f"{path}.{field}" if path else field) for field, part in parts))
