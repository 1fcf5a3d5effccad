"""Every core gives the same values and gradients whatever the strides of its inputs, and compiles nothing again."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from engram.agents.cores.core import Core, CoreState, map_state, state_leaves
from engram.agents.cores.registry import core_names
from small_cores import INPUTS, small_core

T, B = 5, 6


def transposed(x: Tensor) -> Tensor:
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


def with_gaps(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, -1)[..., ::2]


LAYOUTS = (transposed, with_gaps)


def floats(state: CoreState) -> list[Tensor]:
    return [leaf for leaf in state_leaves(state) if leaf.is_floating_point()]


def passes(core: Core, inputs: Tensor, reset: Tensor, state: CoreState, layout: Any) -> list[Tensor]:
    """Outputs, last state and all gradients of an unroll of T - 1 steps and one step more, in a layout."""
    inputs = layout(inputs).requires_grad_()
    state = map_state(lambda x: layout(x).requires_grad_(x.is_floating_point()), state)
    outputs, after, loss = core.unroll(inputs[:-1], layout(reset[:-1]), state, 3)
    last, end = core(inputs[-1], map_state(layout, after))
    ends = [outputs, last, *floats(after), *floats(end), *([] if loss is None else [loss])]
    generator = torch.Generator().manual_seed(2)
    above = [layout(torch.randn(x.shape, generator=generator)) for x in ends]
    sources = [inputs, *floats(state), *core.parameters()]
    driven = [
        (end, gradient) for end, gradient in zip(ends, above, strict=True) if end.requires_grad
    ]  # not RTU's traces
    results, above = zip(*driven, strict=True)
    return [*ends, *torch.autograd.grad(results, sources, above, materialize_grads=True)]


def compiled_kinds() -> dict[str, int]:
    """How many argument types every compiled function of the cores was compiled for."""
    modules = [module for name, module in sys.modules.items() if name.startswith("engram.agents.cores.fast")]
    made = [(f"{m.__name__}.{key}", f) for m in modules for key, f in vars(m).items() if hasattr(f, "signatures")]
    return {name: len(function.signatures) for name, function in made}


@pytest.mark.parametrize("name", core_names())
def test_values_and_gradients_do_not_depend_on_strides(name: str) -> None:
    torch.manual_seed(0)
    core = small_core(name)
    inputs, reset = torch.randn(T, B, INPUTS), torch.rand(T, B) < 0.2
    with torch.no_grad():
        state = map_state(torch.clone, core(inputs[0], core.initial_state(B))[1])
    plain = passes(core, inputs, reset, state, torch.clone)
    before = compiled_kinds()
    for layout in LAYOUTS:
        for ours, theirs in zip(passes(core, inputs, reset, state, layout), plain, strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-4)
    assert compiled_kinds() == before
