"""The loop over time of cores whose gradient is written by hand.

Autograd would record every small operation of every step. Here a whole unroll is one node of its graph: a Recurrence
computes a step and, going backwards, the step's gradient, and sums the gradients of its weights as it goes. Resets and
cuts of the gradient are made in this file, once for all. First derivatives only: asking for a second one is an error.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .core import CoreState, reset_state


class Tape:
    """A stack of tensors: what a step saves on the way forward, the same step's gradient takes back."""

    def __init__(self, tensors: Sequence[Tensor] = (), recording: bool = True) -> None:
        self.tensors = list(tensors)
        self.recording = recording

    def save(self, *tensors: Tensor) -> None:
        """Put tensors on top."""
        if self.recording:
            self.tensors.extend(tensors)

    def take(self, count: int) -> list[Tensor]:
        """Remove the last `count` tensors and return them in the order they were saved in."""
        taken = self.tensors[-count:]
        del self.tensors[-count:]
        return taken


class Recurrence:
    """One step of a recurrent map and its gradient, made anew for each pass over T steps.

    The constructor takes the tensors that gradients are wanted for: sequences [T, B, ...], of which step t reads row
    t, and weights. The first leaf of the state is also the output.
    """

    def forward(self, t: int, state: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """The leaves of the state after step t from those before it; saves what `backward` needs."""
        raise NotImplementedError

    def backward(self, t: int, grads: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """The gradient of the state before step t from that of the state after it, which it may overwrite."""
        raise NotImplementedError

    def gradients(self) -> Sequence[Tensor]:
        """After `backward` of all steps: the gradients of the constructor's tensors, in their order."""
        raise NotImplementedError


def run(
    make: Callable[..., Recurrence],
    tensors: Sequence[Tensor],
    state: CoreState,
    initial: CoreState,
    reset: Tensor,
    bptt_length: int | None,
) -> tuple[Tensor, CoreState]:
    """The recurrence `make(*tensors)` over T steps: outputs [T, B, ...] and the last state.

    `reset` (bool [T, B]) and `bptt_length` mean what they mean in `Core.unroll`.
    """
    return _run(
        _Plan(make, initial, reset, reset.any(1).tolist(), bptt_length, torch.is_grad_enabled()), tensors, state
    )


def run_once(make: Callable[..., Recurrence], tensors: Sequence[Tensor], state: CoreState) -> CoreState:
    """One step of the recurrence, its sequences having one row: the next state."""
    if torch.is_grad_enabled():
        no_reset = torch.zeros(1, len(state[0]), dtype=torch.bool, device=state[0].device)
        return _run(_Plan(make, state, no_reset, [False], None, recording=True), tensors, state)[1]
    recurrence = make(*(tensor.detach().contiguous() for tensor in tensors))
    leaves = [leaf.detach().contiguous() for leaf in state]
    return type(state)(*recurrence.forward(0, leaves, Tape(recording=False)))


class _Plan(NamedTuple):
    make: Callable[..., Recurrence]
    initial: CoreState
    reset: Tensor
    any_reset: list[bool]
    bptt_length: int | None
    recording: bool


def _run(plan: _Plan, tensors: Sequence[Tensor], state: CoreState) -> tuple[Tensor, CoreState]:
    outputs, *leaves = _Loop.apply(plan, *state, *tensors)  # pyright: ignore
    return outputs, type(state)(*leaves)


class _Loop(torch.autograd.Function):
    """All T steps as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *leaves_and_tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = len(plan.initial)
        tensors = leaves_and_tensors[leaves:]
        state = type(plan.initial)(*(leaf.detach().contiguous() for leaf in leaves_and_tensors[:leaves]))
        recurrence = plan.make(*(tensor.detach().contiguous() for tensor in tensors))
        tape = Tape(recording=plan.recording)
        outputs: list[Tensor] = []
        for t, starts in enumerate(plan.any_reset):
            if starts:
                state = reset_state(state, plan.initial, plan.reset[t])
            state = type(plan.initial)(*recurrence.forward(t, state, tape))
            outputs.append(state[0])
        ctx.plan, ctx.tensors = plan, len(tensors)
        ctx.save_for_backward(*tensors, *tape.tensors)
        return torch.stack(outputs), *state

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, *grad_state: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        refuse_second_derivative()
        plan: _Plan = ctx.plan
        saved = ctx.saved_tensors
        tape = Tape(saved[ctx.tensors :])
        recurrence = plan.make(*(tensor.contiguous() for tensor in saved[: ctx.tensors]))
        grads = [grad.contiguous() for grad in grad_state]
        for t in reversed(range(len(plan.any_reset))):
            grads[0] = grads[0] + grad_outputs[t]
            grads = list(recurrence.backward(t, grads, tape))
            if plan.any_reset[t]:
                grads = [_zero_rows(grad, plan.reset[t]) for grad in grads]
            if plan.bptt_length is not None and t > 0 and t % plan.bptt_length == 0:
                grads = [torch.zeros_like(grad) for grad in grads]
        return None, *grads, *recurrence.gradients()


def refuse_second_derivative() -> None:
    """Raises RuntimeError in the backward pass of a graph that shall be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError("this core has no second derivative: its gradient is written by hand (create_graph=True)")


def _zero_rows(grad: Tensor, rows: Tensor) -> Tensor:
    return grad.masked_fill(rows.reshape(-1, *([1] * (grad.dim() - 1))), 0.0)
