"""Panels of memories with separate decay rates: pools, and the complex states of LRU and FFM.

Rows are ordered by half-life: the number of steps after which half of an addition has decayed.
"""

import numpy as np
import torch
from torch import Tensor

from ..cores.concrete import Concrete
from ..cores.linear.ffm import FFM
from ..cores.linear.lru import LRU, Block
from .panels import MOST_ROWS, Panel, liveliest, panels_of, values
from .trace import Trace

FEWEST_FEATURES = 4


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    most = max(MOST_ROWS // core.num_pools, FEWEST_FEATURES)
    shown, labels, bands, sizes = [], [], [], []
    for n, half_life in enumerate(core.half_lives(), start=1):
        series = values(trace.after.pools[:, n - 1])
        selected = liveliest(series, most)
        largest = float(np.abs(series).max(initial=0.0))
        sizes.append(np.linalg.norm(series, axis=0))
        bands.append((f"pool {n}: half-life {half_life:.3g}", sum(map(len, shown))))
        shown.append(series[selected] / max(largest, 1e-12))
        labels += [f"pool {n}, feature {i + 1}" for i in selected]
    return [
        Panel(
            "pools by time scale",
            f"Each band is a pool, its {len(shown[0])} most active features scaled to the pool's largest value. "
            "After its half-life (steps) half of an input's effect on the pool has decayed.",
            "heat",
            np.concatenate(shown).astype(np.float32),
            tuple(labels),
            "signed",
            bands=tuple(bands),
        ),
        Panel(
            "size of the pools",
            "Euclidean norm.",
            "lines",
            np.stack(sizes).astype(np.float32),
            tuple(f"pool {n}" for n in range(1, core.num_pools + 1)),
        ),
    ]


@panels_of.register
def _(core: LRU, trace: Trace) -> list[Panel]:
    panels: list[Panel] = []
    for number, block in enumerate(core.blocks):
        assert isinstance(block, Block)
        title = (
            "size of the states by half-life" if len(core.blocks) == 1 else f"block {number + 1}: states by half-life"
        )
        panels.append(by_half_life(title, "unit", trace.after.h[:, number].norm(dim=2), block.half_lives()))
    return panels


@panels_of.register
def _(core: FFM, trace: Trace) -> list[Panel]:
    sizes = trace.after.traces.flatten(2).norm(dim=2)
    return [by_half_life("size of the traces by half-life", "trace", sizes, core.half_lives())]


def by_half_life(title: str, name: str, sizes: Tensor, half_lives: Tensor) -> Panel:
    """Magnitudes [T, N] of complex states from fastest to slowest, each relative to its maximum."""
    order = half_lives.argsort(stable=True)
    selected = order[torch.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().long()]
    series = values(sizes[:, selected])
    less = "" if len(selected) == len(order) else f" {len(selected)} of {len(order)}, evenly chosen."
    return Panel(
        title,
        "From fast (top) to slow: absolute value, as a share of the largest in this episode." + less,
        "heat",
        series / np.maximum(series.max(1, keepdims=True), 1e-12),
        tuple(f"{name} {i + 1}: half-life {half_lives[i]:.3g}" for i in selected.tolist()),
        "share",
    )
