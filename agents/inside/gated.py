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
from .panels import MOST_ROWS, Panel, Scale, Values, lines, liveliest, numbered, panels_of, values
from .trace import Trace


@panels_of.register(LSTM)
@panels_of.register(GRU)
@panels_of.register(ConvLSTM)
def _(core: LSTM | GRU | ConvLSTM, trace: Trace) -> list[Panel]:
    name, leaf = ("units", trace.after.h) if isinstance(core, GRU) else ("cells", trace.after.c)
    return [by_time_constant(name, leaf)]


@panels_of.register
def _(core: MinGRU, trace: Trace) -> list[Panel]:
    layers, outputs = numbered("layer", len(core.layers)), trace.after.h.unbind(1)
    # h_t = (1 - z_t) h_{t-1} + z_t n_t
    inputs = (trace.inputs, *outputs[:-1])
    rates = [1 - core.gates(layer(x))[0].mean(1) for layer, x in zip(core.layers, inputs, strict=True)]
    note = "Mean of z: the share of a unit that a step replaces."
    return [
        lines("update rate", note, torch.stack(rates, 1), layers, "share"),
        *(by_time_constant(f"units of {name}", h) for name, h in zip(layers, outputs, strict=True)),
    ]


@panels_of.register
def _(core: Concrete, trace: Trace) -> list[Panel]:
    most = max(MOST_ROWS // core.num_pools, 1)
    rows, labels, bands = [], [], []
    for n, half_life in enumerate(core.half_lives()):
        series = values(trace.after.pools[:, n])
        selected = liveliest(series, most)
        bands.append((f"pool {n + 1}: half-life {half_life:.3g}", len(labels)))
        rows.append(series[selected] / max(float(np.abs(series).max()), 1e-12))
        labels += [f"pool {n + 1}, feature {i + 1}" for i in selected]
    note = (
        f"Each band is a pool: its {len(rows[0])} most active features, scaled to the pool's largest value. "
        "After the half-life (in steps), half of an input's effect on the pool has decayed."
    )
    sizes = trace.after.pools.norm(dim=2)
    return [
        Panel("pools by time scale", note, "heat", np.concatenate(rows), tuple(labels), "signed", bands=tuple(bands)),
        lines("size of the pools", "Euclidean norm.", sizes, numbered("pool", core.num_pools)),
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
    series = values(sizes)
    shares = series / np.maximum(series.max(1, keepdims=True), 1e-12)
    spans = half_lives.detach().double().numpy()
    meaning = "absolute value, as a share of the largest in this episode."
    return _ordered(f"{title} by half-life", meaning, shares, spans, name + " {}: half-life {:.3g}", "share")


def by_time_constant(name: str, leaf: Tensor) -> Panel:
    """Show a leaf [T, ...] by the time constants of its R values."""
    series = values(leaf)
    meaning = "steps after which a unit's autocorrelation in this episode is below 1/e."
    spans = time_constants(series)
    return _ordered(f"{name} by time constant", meaning, series, spans, "unit {}: {:.3g} steps", "signed")


def _ordered(title: str, meaning: str, series: Values, spans: NDArray[np.float64], label: str, scale: Scale) -> Panel:
    """Show at most MOST_ROWS series [R, T] in ascending order of their spans [R]."""
    order = np.argsort(spans, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(int)]
    less = "" if len(rows) == len(order) else f" {len(rows)} of {len(order)}, evenly spaced."
    labels = tuple(label.format(i + 1, spans[i]) for i in rows)
    return Panel(title, f"From fast (top) to slow: {meaning}{less}", "heat", series[rows], labels, scale)


def time_constants(series: Values) -> NDArray[np.float64]:
    """Return the first lag of each series [R, T] at which the autocorrelation is below 1/e, interpolated; T if there is
    none, as for a constant series."""
    steps = series.shape[1]
    centered = series - series.mean(1, keepdims=True, dtype=np.float64)
    spectrum = np.fft.rfft(centered, 2 * steps, axis=1)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :steps]
    energy = correlation[:, 0]
    still = energy <= 1e-12 * energy.max()
    correlation = correlation / np.where(still, 1.0, energy)[:, np.newaxis]
    below = correlation < np.exp(-1)
    first = below.argmax(1)
    rows = np.arange(len(series))
    high, low = correlation[rows, np.maximum(first - 1, 0)], correlation[rows, first]
    lag = first - 1 + (high - np.exp(-1)) / np.where(high > low, high - low, 1.0)
    return np.where(still | ~below.any(1), float(steps), lag)
