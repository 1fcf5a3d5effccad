"""Recorded runs from before gradients reached Adam in the memory layout of their parameters.

`torch.autograd.grad` returns some gradients in another layout than the parameter's, and the fused kernel of Adam
ignores strides: it stepped with their elements in the wrong order. A run is marked until it is trained again.
"""

import re
from contextlib import closing
from typing import Any

import torch

from engram.launch.config.run_config import RunConfig

REPAIRED = "2026-11-27T05:14:13+00:00"
"""Time of the repair; runs that began earlier, or whose beginning is not recorded, were trained without it."""
MARK = "†"
_OTHER_LAYOUT = (
    (r"(^|\.)(convs\.\d+|input_conv|state_conv)\.weight$", "convolution kernels"),
    (r"^core\.viewport_weight$", "viewport weights"),
)
"""Names of the parameters, measured over all curves; FWM's and the LSTM's recurrent weights have their layout."""


def affected(config: RunConfig, run: dict[str, Any]) -> list[str]:
    """Kinds of parameters of a recorded run whose gradients had another layout; empty for runs of after the repair."""
    if (run.get("begun") or "") >= REPAIRED or config.learner.optimizer != "adam":
        return []
    factory = config.factory()
    with closing(factory.make_batch(num_envs=1)) as env, torch.device("meta"):
        names = [name for name, _ in factory.make_agent(env).named_parameters()]
    kinds = [kind for form, kind in _OTHER_LAYOUT if any(re.search(form, name) for name in names)]
    return kinds + ["the controller's recurrent weights"] * config.agent.core.startswith("mnm-")


def footnote(kinds: list[str]) -> str:
    """Line under a table with marked runs; the page explains the mark."""
    return f"{MARK} Affected by the order of gradients: {', '.join(dict.fromkeys(kinds))}."
