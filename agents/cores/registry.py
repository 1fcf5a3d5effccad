"""Cores by name: `make_core("rmc", input_size, **options)`.

Third parties add cores with an entry point in the group `engram.cores` or name them as `module:Class`.
"""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.messages import calling, check_keys, check_range
from ...base.registry import Registry
from ..certificate.probe import ENVS, Failure, form
from .core import Core

CORES = {
    "agalite": ".linear.agalite:AGaLiTe",
    "concrete": ".concrete:Concrete",
    "conv-lstm": ".conv_lstm:ConvLSTM",
    "delta-net": ".linear.delta_net:DeltaNet",
    "elman": ".simple:Elman",
    "feedforward": ".simple:Feedforward",
    "ffm": ".linear.ffm:FFM",
    "frame-stack": ".simple:FrameStack",
    "fwm": ".fwm:FWM",
    "gru": ".gru:GRU",
    "gtrxl": ".gtrxl:GTrXL",
    "ind-rnn": ".simple:IndRNN",
    "lru": ".linear.lru:LRU",
    "lstm": ".lstm:LSTM",
    "mamba2": ".linear.mamba2:Mamba2",
    "mgu": ".simple:MGU",
    "min-gru": ".linear.min_gru:MinGRU",
    "mlstm": ".linear.mlstm:MLSTM",
    "mnm-g": ".mnm:MNMg",
    "mnm-p": ".mnm:MNMp",
    "parallel": ".concrete:Parallel",
    "rmc": ".rmc:RMC",
    "rtu": ".linear.rtu:RTU",
    "s5": ".linear.s5:S5",
    "shm": ".linear.shm:SHM",
    "slstm": ".slstm:SLSTM",
}

OUTSIDE = (Path(__file__).parents[1], Path(torch.__file__).parent, Path(np.__file__).parent)
"""Folders whose stack frames are not the user's code."""

_REGISTRY = Registry("core", Core, CORES, __package__, OUTSIDE)
core_names, core_class = _REGISTRY.names, _REGISTRY.find


def core_parameters(name: str) -> dict[str, inspect.Parameter]:
    """Return the options of a core by name (all parameters but input_size)."""
    return {k: p for k, p in inspect.signature(core_class(name)).parameters.items() if k != "input_size"}


def make_core(name: str, input_size: int, **options: Any) -> Core:
    """Create a core by name for inputs [B, input_size]. Raises ValueError for an unknown name or option."""
    allowed = core_parameters(name)
    check_keys(f"core {name!r}", "option", options, allowed)
    if name in CORES:
        for key, value in options.items():
            _check_option(key, value, allowed[key])
        core = core_class(name)(input_size, **options)
    else:
        make = partial(core_class(name), input_size, **options)
        core = calling(f"cannot make core {name!r}: __init__", make, OUTSIDE, (ValueError,))
        check_core(core, name, input_size)
    if not hasattr(core, "input_size"):
        core.input_size = input_size
    return core


def _check_option(key: str, value: Any, parameter: inspect.Parameter) -> None:
    """Raise ValueError unless the value of a built-in core's option is a size, or else a finite number, if its default
    is one."""
    default = parameter.default
    is_size = type(default) is int and default >= 1
    if is_size or (parameter.annotation == int | None and value is not None):
        if not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{key} is {value!r}; allowed: at least 1 (a whole number)")
    elif type(default) in (int, float):
        check_range(key, value, None)


def check_core(core: Core, name: str, input_size: int) -> None:
    """Call `initial_state` and `forward` once. Raises ValueError with the method, its result and the expected result.

    The state of random number generators is preserved. A core on the meta device is not checked.
    """
    size = getattr(core, "output_size", "not set")
    if not isinstance(size, int):
        raise ValueError(f"{name}.output_size is {size}; expected a whole number, the width of forward's output")
    weight = next(core.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    inputs = torch.zeros(ENVS, input_size, dtype=weight.dtype, device=weight.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        state = calling(f"{name}.initial_state({ENVS})", partial(core.initial_state, ENVS), OUTSIDE)
        expected = _form(f"{name}.initial_state({ENVS})", state)
        result: Any = calling(f"{name}.forward", partial(core, inputs, state), OUTSIDE)
    output, after = result if isinstance(result, tuple) and len(result) == 2 else (None, state)
    if not isinstance(output, Tensor) or output.shape != (ENVS, size):
        actual = f"the output {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(result).__name__}"
        raise ValueError(f"{name}.forward returned {actual}; expected (output [{ENVS}, {size}], state)")
    actual = _form(f"{name}.forward", after)
    if actual != expected:
        raise ValueError(f"{name}.forward returned the state {actual}; initial_state has {expected}")


def _form(method: str, state: Any) -> str:
    try:
        return form(state)
    except Failure as problem:
        raise ValueError(f"{method} returned a wrong state: {problem}") from None
