"""When a compiled route may stand in for a core's statement.

Small operations of a memory core cost more in starting them, and in bringing their numbers from memory, than in
computing. Compiled loops do many of them in one pass. Where they cannot work the statement runs: on a GPU, in half
precision, under torch.compile and torch.func, for a core whose parts have hooks or parametrisations or were exchanged.
`ENGRAM_COMPILED=0` in the environment switches all of them off.
"""

import os

import torch
from torch import Tensor, nn

from ....base.compiled import JIT
from ..contract.calls import touched, under_torch_func

enabled = JIT and os.environ.get("ENGRAM_COMPILED", "1") != "0"
"""Whether compiled functions are used where they can be."""


def suits(tensor: Tensor) -> bool:
    """Whether compiled functions can work on such a tensor here and now."""
    return (
        enabled
        and not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and not under_torch_func()
    )


def stands_for(core: nn.Module, inputs: Tensor) -> bool:
    """Whether a compiled route gives for this core what its own modules would give."""
    return suits(inputs) and _uniform(core, inputs.dtype) and not touched(core)


def _uniform(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all parameters are of one type and on the CPU."""
    own = vars(module)
    for parameter in own["_parameters"].values():
        if parameter is not None and not (parameter.dtype == dtype and parameter.device.type == "cpu"):
            return False
    return all(part is None or _uniform(part, dtype) for part in own["_modules"].values())


def refuse_second_derivative() -> None:
    """Raises RuntimeError in the backward pass of a graph that shall be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a compiled route has no second derivative (create_graph=True); with ENGRAM_COMPILED=0 the core has one"
        )
