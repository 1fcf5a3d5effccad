"""Panels of memories whose units have time scales: measured for gated cores, computed from decay rates for filters.

Heat maps are ordered from fast to slow. A half-life is the number of steps after which half of an addition has decayed.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores.concrete import Concrete
from ..cores.conv_lstm import ConvLSTM
from ..cores.gru import GRU
from ..cores.linear.ffm import FFM
from ..cores.linear.lru import LRU, Block
from ..cores.linear.min_gru import MinGRU
from ..cores.lstm import LSTM
from .panels import MOST_ROWS, Panel, Values, liveliest, numbered, panels_of, values
from .trace import Trace

FEWEST_FEATURES = 4


@panels_of.register(LSTM)
@panels_of.register(GRU)
@panels_of.register(ConvLSTM)
def _(core: LSTM | GRU | ConvLSTM, trace: Trace) -> list[Panel]:
    name, leaf = ("units", trace.after.h) if isinstance(core, GRU) else ("cells", trace.after.c)
    return [by_time_constant(name, values(leaf))]


@panels_of.register
def _(core: MinGRU, trace: Trace) -> list[Panel]:
    layers = numbered("layer", len(core.layers))
    inputs = [trace.inputs, *trace.after.h.unbind(1)]
    # h_t = (1 - z_t) h_{t-1} + z_t n_t
    new = [
        1 - core.gates(layer(x))[0].mean(1)
        for layer, x in zip(core.layers, inputs, strict=False)  # z, mean over units
    ]
    return [
        Panel(
            "update rate",
            "Mean of z: the share of a unit that a step replaces.",
            "lines",
            values(torch.stack(new, 1)),
            layers,
            "share",
        ),
        *(
            by_time_constant(f"units of {name}", values(h))
            for name, h in zip(layers, trace.after.h.unbind(1), strict=True)
        ),
    ]


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    most = max(MOST_ROWS // core.num_pools, FEWEST_FEATURES)
    rows, labels, bands, sizes = [], [], [], []
    for n, half_life in enumerate(core.half_lives(), start=1):
        series = values(trace.after.pools[:, n - 1])
        selected = liveliest(series, most)
        largest = float(np.abs(series).max(initial=0.0))
        sizes.append(np.linalg.norm(series, axis=0))
        bands.append((f"pool {n}: half-life {half_life:.3g}", sum(map(len, rows))))
        rows.append(series[selected] / max(largest, 1e-12))
        labels += [f"pool {n}, feature {i + 1}" for i in selected]
    return [
        Panel(
            "pools by time scale",
            f"Each band is a pool: its {len(rows[0])} most active features, scaled to the pool's largest value. "
            "After the half-life (in steps), half of an input's effect on the pool has decayed.",
            "heat",
            np.concatenate(rows).astype(np.float32),
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
    for index, block in enumerate(core.blocks):
        assert isinstance(block, Block)
        title = "size of the states" if len(core.blocks) == 1 else f"block {index + 1}: states"
        panels.append(by_half_life(title, "unit", trace.after.h[:, index].norm(dim=2), block.half_lives()))
    return panels


@panels_of.register
def _(core: FFM, trace: Trace) -> list[Panel]:
    sizes = trace.after.traces.flatten(2).norm(dim=2)
    return [by_half_life("size of the traces", "trace", sizes, core.half_lives())]


def by_half_life(title: str, name: str, sizes: Tensor, half_lives: Tensor) -> Panel:
    """Show magnitudes [T, N] of complex states by half-life, each relative to its maximum."""
    series, spans = values(sizes), half_lives.detach().double().numpy()
    rows, note = _from_fast_to_slow(spans, "absolute value, as a share of the largest in this episode.")
    labels = tuple(f"{name} {i + 1}: half-life {spans[i]:.3g}" for i in rows)
    shares = series[rows] / np.maximum(series[rows].max(1, keepdims=True), 1e-12)
    return Panel(f"{title} by half-life", note, "heat", shares, labels, "share")


def by_time_constant(name: str, series: Values) -> Panel:
    """Show series [R, T] by their time constants."""
    spans = time_constants(series)
    meaning = "steps after which a unit's autocorrelation in this episode is below 1/e."
    rows, note = _from_fast_to_slow(spans, meaning)
    labels = tuple(f"unit {i + 1}: {spans[i]:.3g} steps" for i in rows)
    return Panel(f"{name} by time constant", note, "heat", series[rows], labels, "signed")


def _from_fast_to_slow(spans: NDArray[np.float64], meaning: str) -> tuple[NDArray[np.int64], str]:
    """Return the indices of at most MOST_ROWS spans in ascending order, and the panel's note."""
    order = np.argsort(spans, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(int)]
    less = "" if len(rows) == len(order) else f" {len(rows)} of {len(order)}, evenly spaced."
    return rows, f"From fast (top) to slow: {meaning}{less}"


def time_constants(series: Values) -> NDArray[np.float64]:
    """Return the first lag of each series [R, T] at which the autocorrelation is below 1/e, interpolated; T if there is
    none, as for a constant series."""
    steps = series.shape[1]
    centered = series.astype(np.float64) - series.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centered, 2 * steps, axis=1)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :steps]
    energy = correlation[:, :1]
    still = energy[:, 0] <= 1e-12 * max(float(energy.max(initial=0.0)), 1e-30)
    correlation = correlation / np.where(energy > 0, energy, 1.0)
    below = correlation < np.exp(-1)
    first = below.argmax(1)
    rows = np.arange(len(series))
    high, low = correlation[rows, np.maximum(first - 1, 0)], correlation[rows, first]
    lag = first - 1 + (high - np.exp(-1)) / np.where(high > low, high - low, 1.0)
    return np.where(still | ~below.any(1), float(steps), lag)
