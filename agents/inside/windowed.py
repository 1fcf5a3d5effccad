"""Panels of a window over the past: attention span of each head of GTrXL, and the attended steps."""

import torch

from ..cores.gtrxl import GTrXL
from .panels import Panel, each, numbered, panels_of, values
from .trace import Trace


@panels_of.register
def _(core: GTrXL, trace: Trace) -> list[Panel]:
    weights = torch.stack(core.attention(trace.before, trace.after), 1)  # [T, layers, heads, M + 1]
    steps, layers, heads, places = weights.shape
    lags = torch.arange(places - 1, -1, -1)
    by_step = torch.zeros(steps, steps)
    for t in range(steps):
        reach = min(t, places - 1)  # the last places are the steps t - reach .. t
        by_step[t, t - reach : t + 1] = weights[t].mean((0, 1))[places - 1 - reach :]
    names = each(numbered("layer", layers), numbered("head", heads))
    return [
        Panel(
            "attention distance",
            "Mean age, in steps, of what a head attends to; 0 is the present.",
            "lines",
            values((weights * lags).sum(-1)),
            names,
        ),
        Panel(
            "attention by step",
            "Across: attending step. Down: attended step. Color: share of all heads' attention.",
            "heat",
            values(by_step),
            tuple(f"step {t}" for t in range(steps)),
            "share",
        ),
    ]
