"""Panels of gated memories (LSTM, GRU, ConvLSTM, minGRU): units ordered by measured memory span."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..cores.conv_lstm import ConvLSTM
from ..cores.gru import GRU
from ..cores.linear.min_gru import MinGRU
from ..cores.lstm import LSTM
from .panels import MOST_ROWS, Panel, Values, numbered, panels_of, values
from .trace import Trace


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
            "what is new",
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


def by_time_constant(name: str, series: Values) -> Panel:
    """Heat map of series [R, T], from fastest to slowest."""
    spans = time_constants(series)
    order = np.argsort(spans, kind="stable")
    selected = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(int)]
    less = "" if len(selected) == len(order) else f" {len(selected)} of {len(order)}, evenly chosen."
    return Panel(
        f"{name} by time constant",
        "From fast (top) to slow: the steps after which a unit's autocorrelation in this episode is below 1/e." + less,
        "heat",
        series[selected],
        tuple(f"unit {i + 1}: {spans[i]:.3g} steps" for i in selected),
        "signed",
    )


def time_constants(series: Values) -> NDArray[np.float64]:
    """First lag of each series [R, T] at which the autocorrelation is below 1/e, interpolated; T if none is. The result
    is T for a constant series."""
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
