"""Panels of pools: a low-pass memory as bands of one heat map, from the fastest pool to the slowest."""

import numpy as np

from ..cores.concrete import Concrete
from .panels import MOST_ROWS, Panel, liveliest, panels_of, values
from .trace import Trace

FEWEST_FEATURES = 4


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    most = max(MOST_ROWS // core.num_pools, FEWEST_FEATURES)
    shown, labels, bands, sizes = [], [], [], []
    for n, half_life in enumerate(core.half_lives(), start=1):
        series = values(trace.after.pools[:, n - 1])
        kept = liveliest(series, most)
        largest = float(np.abs(series).max(initial=0.0))
        sizes.append(np.linalg.norm(series, axis=0))
        bands.append((f"pool {n}: half-life {half_life:.3g}", sum(map(len, shown))))
        shown.append(series[kept] / max(largest, 1e-12))
        labels += [f"pool {n}, feature {i + 1}" for i in kept]
    return [
        Panel(
            "pools by time scale",
            f"Each band is a pool, its {len(shown[0])} liveliest features scaled to the pool's largest value. "
            "After its half-life (steps) half of an input's effect on the pool has passed.",
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
