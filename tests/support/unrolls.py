"""Parts that tests of cores share: random cores and unrolls, and the loop that every fast unroll must equal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engram.agents.cores.core import Core, CoreState, map_state, state_leaves, unroll_step_by_step

STEPS, ROWS = 7, 5


def randomize(core: Core, scale: float = 0.4) -> Core:
    """The core in float64 with random parameters, biases and gains included."""
    generator = torch.Generator().manual_seed(11)
    core = core.double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(0, scale, generator=generator)
    return core


def random_state(core: Core, rows: int = ROWS) -> CoreState:
    """Leaves that are neither zero nor the initial state, wanting gradients."""
    generator = torch.Generator().manual_seed(12)

    def noise(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype).requires_grad_()

    return map_state(noise, core.initial_state(rows))


def random_inputs(size: int, steps: int = STEPS, rows: int = ROWS, density: float = 0.3) -> tuple[Tensor, Tensor]:
    """Inputs [T, B, size] wanting gradients, and resets [T, B]: some anywhere, one at step 0, a step without any."""
    generator = torch.Generator().manual_seed(13)
    inputs = torch.randn(steps, rows, size, generator=generator, dtype=torch.float64)
    reset = torch.rand(steps, rows, generator=generator) < density
    reset[0, 0], reset[-1] = True, False
    return inputs.requires_grad_(), reset


def values_and_gradients(
    core: Core, outputs: Tensor, state: CoreState, sources: list[Tensor], loss: Tensor | None = None
) -> list[Tensor]:
    """Outputs, last state, loss and the gradients of a random combination of them, for all sources and parameters."""
    generator = torch.Generator().manual_seed(14)
    ends = [outputs, *state_leaves(state), *([] if loss is None else [loss])]
    total = sum((end * torch.randn(end.shape, generator=generator, dtype=end.dtype)).sum() for end in ends)
    assert isinstance(total, Tensor)
    gradients = torch.autograd.grad(total, [*sources, *core.parameters()], materialize_grads=True)
    return [*ends, *gradients]


def compare_with_loop(
    core: Core,
    size: int,
    bptt_length: int | None,
    tolerance: float = 1e-10,
    steps: int = STEPS,
    density: float = 0.3,
    unroll: Callable[..., Any] | None = None,
) -> None:
    """`core.unroll`, or another `unroll`, equals the plain loop over `core.forward`: values and gradients."""
    inputs, reset = random_inputs(size, steps, density=density)
    state = random_state(core)
    sources = [inputs, *state_leaves(state)]
    results: list[Any] = []
    for way in (unroll or type(core).unroll, unroll_step_by_step):
        outputs, last, loss = way(core, inputs, reset, state, bptt_length)
        results.append(values_and_gradients(core, outputs, last, sources, loss))
    for ours, loop in zip(*results, strict=True):
        torch.testing.assert_close(ours, loop, atol=tolerance, rtol=tolerance)


def compare_chunks(core: Core, size: int, tolerance: float = 1e-10) -> None:
    """Unrolling a stretch in two pieces, the state carried over, is unrolling it at once."""
    inputs, reset = random_inputs(size)
    state = random_state(core)
    sources = [inputs, *state_leaves(state)]
    outputs, last, _ = core.unroll(inputs, reset, state)
    whole = values_and_gradients(core, outputs, last, sources)
    first, middle, _ = core.unroll(inputs[:3], reset[:3], state)
    second, last, _ = core.unroll(inputs[3:], reset[3:], middle)
    pieces = values_and_gradients(core, torch.cat([first, second]), last, sources)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def check_gradients(core: Core, size: int) -> None:
    """Gradients of inputs, first state and all parameters against finite differences along random directions."""
    inputs, reset = random_inputs(size, steps=3, rows=2)
    state = random_state(core, rows=2)
    leaves = state_leaves(state)

    def run(inputs: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given = iter(rest)
        outputs, last, loss = core.unroll(inputs, reset, map_state(lambda _: next(given), state))
        return outputs, *state_leaves(last), *([] if loss is None else [loss])

    assert torch.autograd.gradcheck(run, (inputs, *leaves, *core.parameters()), fast_mode=True)


def refuses_second_derivatives(core: Core, size: int) -> None:
    """Asking for a derivative of the gradient is an error, not a silent zero."""
    inputs, reset = random_inputs(size, steps=2)
    outputs, _, _ = core.unroll(inputs, reset, core.initial_state(ROWS))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
