"""Test call of a custom core before a run begins, with errors that compare returned and expected values."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....base.messages import calling
from ...certificate.probe import ENVS, Failure, form
from ..core import Core

# Folders whose frames do not belong to the user
OUTSIDE = (Path(__file__).parents[2], Path(torch.__file__).parent, Path(np.__file__).parent)


def check_core(core: Core, name: str, input_size: int) -> None:
    """Call `initial_state` and `forward` once; ValueError names the method, what it returned and what was expected.

    The state of random number generators is preserved. A core on the meta device is not checked.
    """
    for method in ("initial_state", "forward"):
        if getattr(type(core), method) is getattr(Core, method):
            raise ValueError(f"{name} has no {method}; every core defines one (docs/reference/cores.md)")
    size = getattr(core, "output_size", "not set")
    if not isinstance(size, int):
        raise ValueError(f"{name}.output_size is {size}; expected a whole number, the width of what forward returns")
    weight = next(core.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        state = calling(f"{name}.initial_state({ENVS})", lambda: core.initial_state(ENVS), OUTSIDE)
        expected = _form(f"{name}.initial_state({ENVS})", state)
        inputs = torch.zeros(ENVS, input_size, dtype=weight.dtype, device=weight.device)
        step: Any = core
        done = calling(f"{name}.forward", lambda: step(inputs, state), OUTSIDE)
    output, after = done if isinstance(done, tuple) and len(done) == 2 else (None, state)
    if not isinstance(output, Tensor) or output.shape != (ENVS, size):
        shown = f"the output {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(done).__name__}"
        raise ValueError(f"{name}.forward returned {shown}; expected (output [{ENVS}, {size}], state)")
    actual = _form(f"{name}.forward", after)
    if actual != expected:
        raise ValueError(f"{name}.forward returned the state {actual}; initial_state has {expected}")


def _form(method: str, state: Any) -> str:
    try:
        return form(state)
    except Failure as problem:
        raise ValueError(f"{method} returned a wrong state: {problem}") from None
