"""Panels of gated memories (LSTM, GRU, ConvLSTM): units ordered by how long they were seen to remember."""

import numpy as np
from numpy.typing import NDArray

from ..cores.conv_lstm import ConvLSTM
from ..cores.gru import GRU
from ..cores.lstm import LSTM
from .panels import MOST_ROWS, Panel, Values, panels_of, values
from .trace import Trace


@panels_of.register(LSTM)
@panels_of.register(GRU)
@panels_of.register(ConvLSTM)
def _(core: LSTM | GRU | ConvLSTM, trace: Trace) -> list[Panel]:
    name, leaf = ("units", trace.after.h) if isinstance(core, GRU) else ("cells", trace.after.c)
    series = values(leaf)
    spans = time_constants(series)
    order = np.argsort(spans, kind="stable")
    kept = order[np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(int)]
    less = "" if len(kept) == len(order) else f" {len(kept)} of {len(order)}, evenly chosen."
    return [
        Panel(
            f"{name} by time constant",
            "From quick (above) to slow: the steps after which a unit's autocorrelation in this episode is below 1/e."
            + less,
            "heat",
            series[kept],
            tuple(f"unit {i + 1}, time constant {spans[i]:.3g}" for i in kept),
            "signed",
        )
    ]


def time_constants(series: Values) -> NDArray[np.float64]:
    """Of R series [R, T]: the first lag at which the autocorrelation is below 1/e, interpolated; T if none is.

    A series that never changes remembers for all T steps.
    """
    steps = series.shape[1]
    centred = series.astype(np.float64) - series.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * steps, axis=1)
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
