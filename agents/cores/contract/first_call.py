"""Test call of a custom core before a run begins, with errors that compare returned and expected values."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....base.messages import calling
from ..core import Core, state_leaves

OUTSIDE = (Path(__file__).parents[2], Path(torch.__file__).parent, Path(np.__file__).parent)
"""Folders whose frames do not belong to the user."""
BATCH = 2


def check_core(core: Core, name: str, input_size: int) -> None:
    """Call `initial_state` and `forward` once; ValueError names the method, what it returned and what was expected. The
    state of random number generators is preserved. A core on the meta device is not checked."""
    size = getattr(core, "output_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        shown = "not set" if size is None else repr(size)
        raise ValueError(f"{name}.output_size is {shown}; expected a whole number, the width of what forward returns")
    for method in ("initial_state", "forward"):
        if getattr(type(core), method) is getattr(Core, method):
            raise ValueError(f"{name} has no {method}; every core defines one (docs/reference/cores.md)")
    weight = next(core.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        state = calling(f"{name}.initial_state({BATCH})", lambda: core.initial_state(BATCH), OUTSIDE)
        _check_state(f"{name}.initial_state({BATCH})", state)
        inputs = torch.zeros(BATCH, input_size, dtype=weight.dtype, device=weight.device)
        step: Any = core
        done = calling(f"{name}.forward", lambda: step(inputs, state), OUTSIDE)
    if not isinstance(done, tuple) or len(done) != 2:
        raise ValueError(f"{name}.forward returned {_shown(done)}; expected (output, state)")
    output, after = done
    if not isinstance(output, Tensor) or output.shape != (BATCH, size):
        raise ValueError(
            f"{name}.forward returned the output {_shown(output)}; expected a tensor [{BATCH}, {size}]: "
            f"the batch, output_size"
        )
    if type(after) is not type(state):
        raise ValueError(f"{name}.forward returned the state {_shown(after)}; expected a {type(state).__name__}")
    _check_state(f"{name}.forward", after)
    forms = [[(leaf.shape, leaf.dtype) for leaf in state_leaves(each)] for each in (state, after)]
    for (shape, dtype), (actual_shape, actual_dtype) in zip(*forms, strict=True):
        if (shape, dtype) != (actual_shape, actual_dtype):
            raise ValueError(
                f"{name}.forward returned a state with a leaf {list(actual_shape)} {actual_dtype}; "
                f"initial_state has {list(shape)} {dtype} there"
            )


def _check_state(method: str, state: Any) -> None:
    """Raise ValueError unless `state` is a NamedTuple of tensors [BATCH, ...], nested or not."""
    if not isinstance(state, tuple) or not hasattr(state, "_fields"):
        raise ValueError(f"{method} returned the state {_shown(state)}; expected a NamedTuple of tensors [batch, ...]")
    for field, part in zip(state._fields, state, strict=True):  # pyright: ignore
        if isinstance(part, tuple):
            _check_state(method, part)
        elif not isinstance(part, Tensor) or not part.dim() or part.shape[0] != BATCH:
            raise ValueError(
                f"{method} returned a state with {field} = {_shown(part)}; "
                f"expected a tensor whose first axis is the batch, {BATCH}"
            )


def _shown(value: Any) -> str:
    """Format a value for a message: a tensor's shape, or the type of other values."""
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)}"
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
