"""Cores by name: built-in, from an entry point in the group `engram.cores`, or `module:Class`."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.errors import calling, check_keys, check_range, refuse, user_errors
from ...base.registry import Registry
from ..certificate.probe import ENVS, form
from .core import Core

CORES = {
    "agalite": ".linear.agalite:AGaLiTe",
    "concrete": ".concrete:Concrete",
    "conv-lstm": ".conv_lstm:ConvLSTM",
    "delta-net": ".linear.chunked:DeltaNet",
    "elman": ".simple:Elman",
    "feedforward": ".simple:Feedforward",
    "ffm": ".linear.elementwise:FFM",
    "frame-stack": ".simple:FrameStack",
    "fwm": ".fwm:FWM",
    "gru": ".gru:GRU",
    "gtrxl": ".gtrxl:GTrXL",
    "ind-rnn": ".simple:IndRNN",
    "lru": ".linear.elementwise:LRU",
    "lstm": ".lstm:LSTM",
    "mamba2": ".linear.hadamard:Mamba2",
    "mgu": ".simple:MGU",
    "min-gru": ".linear.elementwise:MinGRU",
    "mlstm": ".linear.chunked:MLSTM",
    "mnm-g": ".mnm:MNMg",
    "mnm-p": ".mnm:MNMp",
    "parallel": ".concrete:Parallel",
    "rmc": ".rmc:RMC",
    "rtu": ".linear.rtu:RTU",
    "s5": ".linear.elementwise:S5",
    "shm": ".linear.hadamard:SHM",
    "slstm": ".simple:SLSTM",
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
    """Raise ValueError unless the value of a built-in core's option is a size or a finite number, if its default is."""
    default = parameter.default
    is_size = type(default) is int and default >= 1
    if is_size or (parameter.annotation == int | None and value is not None):
        positive = isinstance(value, int) and value >= 1
        refuse(not positive, f"{key} is {value!r}; allowed: at least 1 (a whole number)")
    elif type(default) in (int, float):
        check_range(key, value, None)


def check_core(core: Core, name: str, input_size: int) -> None:
    """Call `initial_state` and `forward` once, unless the core is on the meta device, and preserve random number
    generators. Raises ValueError with the method, its result and the expected result."""
    size, problem = getattr(core, "output_size", "not set"), "expected a whole number, the width of forward's output"
    refuse(not isinstance(size, int), f"{name}.output_size is {size}; {problem}")
    weight = next(core.parameters(), torch.zeros(()))
    if weight.is_meta:
        return
    inputs = torch.zeros(ENVS, input_size, dtype=weight.dtype, device=weight.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        method = f"{name}.initial_state({ENVS})"
        state = calling(method, partial(core.initial_state, ENVS), OUTSIDE)
        with user_errors(f"{method} returned a wrong state"):
            expected = form(state)
        result: Any = calling(f"{name}.forward", partial(core, inputs, state), OUTSIDE)
    output, after = result if isinstance(result, tuple) and len(result) == 2 else (None, state)
    actual = f"the output {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(result).__name__}"
    fits = isinstance(output, Tensor) and output.shape == (ENVS, size)
    refuse(not fits, f"{name}.forward returned {actual}; expected (output [{ENVS}, {size}], state)")
    with user_errors(f"{name}.forward returned a wrong state"):
        actual = form(after)
    refuse(actual != expected, f"{name}.forward returned the state {actual}; initial_state has {expected}")
