"""The certificate's probe: a core with random sequences, and comparisons of its results, in float64 if the core
supports it, so that any difference is an error, not rounding. Shapes: T steps, B environments, D input features."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...base.errors import EngramError, refuse
from ..cores.core import Core, CoreState, map_state, state_leaves, unroll_step_by_step

STEPS, ENVS = 40, 4  # T and B of the checks: more steps than most built-in cores process per chunk


class Probe(NamedTuple):
    make: Callable[[], Core]  # Creates another core of the same kind, with different weights
    single: Core  # Original core
    core: Core  # Copy of the core in float64, or `single` if it does not support float64
    inputs: Tensor  # [T, B, D], in the precision of `core`
    reset: Tensor  # bool [T, B]: none in environment 0, random in others
    state: CoreState  # State of the core after some steps on other inputs
    tolerance: float  # Largest difference attributed to rounding, relative to the largest compared value
    long_run: int
    recall_updates: int


def make_probe(make: Callable[[], Core], input_size: int, long_run: int, recall_updates: int) -> Probe:
    """Create a probe of the core from `make`, for inputs [B, input_size]. Raises EngramError for an invalid state."""
    single = make()
    form(single.initial_state(ENVS))
    core, dtype, tolerance = single, torch.float32, 1e-3
    try:
        double = copy.deepcopy(single).double()
        double(torch.zeros(1, input_size, dtype=torch.float64), cast(double.initial_state(1), torch.float64))
        core, dtype, tolerance = double, torch.float64, 1e-6
    except (RuntimeError, TypeError):
        pass  # supports float32 only
    inputs = torch.randn(STEPS, ENVS, input_size, dtype=dtype)
    reset = torch.rand(STEPS, ENVS) < 0.1
    reset[:, 0] = False
    reset[0, 1] = reset[5, 2] = reset[6, 2] = reset[-1, 3] = True  # at both ends, and two steps in a row
    state = cast(core.initial_state(ENVS), dtype)
    with torch.no_grad():
        for _ in range(5):
            _, state = core(torch.randn(ENVS, input_size, dtype=dtype), state)
    return Probe(make, single, core, inputs, reset, state, tolerance, long_run, recall_updates)


class Pass(NamedTuple):
    """Results of `Core.unroll`."""

    outputs: Tensor
    state: CoreState
    loss: Tensor | None

    def each(self) -> Tensor:
        """Return the outputs [T, B, ...] and, as one more feature, the loss."""
        return self.outputs if self.loss is None else torch.cat([self.outputs, self.loss.unsqueeze(2)], 2)


Run = Callable[[Core, Tensor, Tensor, CoreState], Pass]  # A form of an unroll: core, inputs, reset, state


def by_unroll(core: Core, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None) -> Pass:
    return Pass(*core.unroll(inputs, reset, state, bptt_length))


def by_steps(core: Core, inputs: Tensor, reset: Tensor, state: CoreState) -> Pass:
    return Pass(*unroll_step_by_step(core, inputs, reset, state))


def in_pieces(length: int, detach: bool = False) -> Run:
    """Return a form with `length` steps per unroll, each from the last state of the previous (detached if `detach`)."""

    def run(core: Core, inputs: Tensor, reset: Tensor, state: CoreState) -> Pass:
        passes: list[Pass] = []
        for part, starts in zip(inputs.split(length), reset.split(length), strict=True):
            passes.append(by_unroll(core, part, starts, state))
            state = map_state(Tensor.detach, passes[-1].state) if detach else passes[-1].state
        losses = [one.loss for one in passes if one.loss is not None]
        outputs = torch.cat([one.outputs for one in passes])
        return Pass(outputs, passes[-1].state, torch.cat(losses) if losses else None)

    return run


def form(state: CoreState) -> str:
    """Describe the structure of a state, e.g. LSTMState(h [256], c [256]); shapes without the batch."""
    if isinstance(state, Tensor):
        fits = state.dim() > 0 and state.shape[0] == ENVS
        refuse(not fits, f"a leaf of the state has shape {list(state.shape)} for a batch of {ENVS}")
        kind = "" if state.dtype == torch.float32 else f" {state.dtype}"
        return f"{list(state.shape[1:])}{kind}"
    fields = getattr(state, "_fields", None)
    if fields is None:
        raise EngramError(f"a state is a NamedTuple of tensors, not {type(state).__name__}")
    parts = (f"{name} {form(part)}" for name, part in zip(fields, state, strict=True))
    return f"{type(state).__name__}({', '.join(parts)})"


def cast(state: CoreState, dtype: torch.dtype) -> CoreState:
    return map_state(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, state)


def another(state: CoreState) -> CoreState:
    """Return a state that differs in every floating-point leaf."""
    return map_state(lambda leaf: 3 - 2 * leaf if leaf.is_floating_point() else leaf, state)


def floats(state: CoreState) -> list[Tensor]:
    return [leaf for leaf in state_leaves(state) if leaf.is_floating_point()]


def tracked(probe: Probe) -> tuple[Tensor, CoreState]:
    """Return inputs and state that record gradients."""
    state = map_state(lambda leaf: leaf.clone().requires_grad_(leaf.is_floating_point()), probe.state)
    return probe.inputs.clone().requires_grad_(), state


def gradients(of: Tensor, sources: Sequence[Tensor], retain: bool = False) -> list[Tensor]:
    """Return gradients of a scalar, zero for unused sources. With `retain`, the graph can be used again."""
    if not of.requires_grad:
        return [torch.zeros_like(tensor) for tensor in sources]
    return list(torch.autograd.grad(of, sources, None, retain, allow_unused=True, materialize_grads=True))


def summed(one: Pass) -> Tensor:
    """Return the sum of all results of a pass, with a different weight for each value."""
    parts = [one.outputs, *floats(one.state), *([] if one.loss is None else [one.loss])]
    weights = torch.Generator().manual_seed(1)
    random = (torch.randn(part.shape, generator=weights, dtype=part.dtype) for part in parts)
    return torch.stack([(part * weight).sum() for part, weight in zip(parts, random, strict=True)]).sum()


def require_equal(actual: Tensor, expected: Tensor, label: str, tolerance: float) -> None:
    """Compare values up to rounding; nan equals nothing."""
    refuse(actual.shape != expected.shape, f"{label}: shape {list(actual.shape)} instead of {list(expected.shape)}")
    if actual.numel() > 0:
        error, largest = (actual - expected).abs().max().item(), expected.abs().max().item()
        close = error <= tolerance * max(largest, 1e-3)
        refuse(not close, f"{label} differ by {error:.1e} (largest value {largest:.1e})")


def require_same(probe: Probe, first: Run, second: Run) -> None:
    """Compare the values and every gradient of two forms of an unroll over the probe's steps."""
    sides: list[dict[str, Tensor]] = []
    for run in (first, second):
        inputs, state = tracked(probe)
        one = run(probe.core, inputs, probe.reset, state)
        side = {"outputs": one.outputs}
        side |= {f"states (leaf {i})": leaf for i, leaf in enumerate(floats(one.state))}
        side |= {} if one.loss is None else {"auxiliary losses": one.loss}
        sources = {"the inputs": inputs}
        sources |= {f"the first state (leaf {i})": leaf for i, leaf in enumerate(floats(state))}
        sources |= dict(probe.core.named_parameters())
        grads = gradients(summed(one), list(sources.values()))
        sides.append(side | {f"gradients of {name}": grad for name, grad in zip(sources, grads, strict=True)})
    refuse(sides[0].keys() != sides[1].keys(), "an auxiliary loss in one form and none in the other")
    for label, actual in sides[0].items():
        require_equal(actual, sides[1][label], label, probe.tolerance)
