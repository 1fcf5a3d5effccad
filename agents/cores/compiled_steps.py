"""A core's step compiled by torch.compile, if the learner is configured to use it.

On a GPU, launching the dozens of small operations of a step takes longer than computing them; a compiled step is a few
fused operations, which `--cuda-graph` records with the rest of the update. Weights and acting do not change.
"""

import sys
import time
from typing import Any

import torch
from torch import Tensor

from .core import Core, CoreState, Unrolled, in_full_precision, map_state, state_leaves, unroll_step_by_step


def compile_steps(core: Core, backend: str = "inductor") -> None:
    """Make `core.unroll` run the plain loop over the compiled step when gradients are recorded. The step is compiled
    at the first unroll and again for each new number of environments. A failure is reported in one line on the standard
    error stream; from then on, the core's own unroll is used. `backend` is a backend of torch.compile."""
    if core.loops_over_time:
        core.unroll = CompiledUnroll(core, backend)
    else:
        _report(core, "has no loop over time, so there is no step to compile; --compile has no effect")


class CompiledUnroll:
    """Replacement for the `unroll` of one core, with compiled steps where possible."""

    def __init__(self, core: Core, backend: str) -> None:
        self._core, self._backend = core, backend
        self._compiled: Any = None
        self._tried: set[tuple[Any, ...]] = set()
        self._works = True

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled code, which stays in this process; unpickled and copied objects compile the step again."""
        return vars(self) | {"_compiled": None, "_tried": set[tuple[Any, ...]]()}

    def __call__(self, inputs: Tensor, reset: Tensor, state: CoreState, bptt_length: int | None = None) -> Unrolled:
        def run(inputs: Tensor) -> Unrolled:
            if torch.is_grad_enabled() and self._works and self._can_compile(inputs):
                return unroll_step_by_step(self._core, inputs, reset, state, bptt_length, self._step)
            return type(self._core).unroll(self._core, inputs, reset, state, bptt_length)

        return in_full_precision(self._core, run, inputs)

    def _step(self, inputs: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        return self._compiled(_alike(inputs), map_state(_alike, state))

    def _can_compile(self, inputs: Tensor) -> bool:
        """Run the step and its gradient on zeros, once for every shape; return whether they compile."""
        kind = (inputs.shape[1:], inputs.dtype, inputs.device)
        if kind in self._tried:
            return True
        begin, core = time.perf_counter(), self._core
        try:
            # Not "reduce-overhead", which records a CUDA graph per step; --cuda-graph records the whole update as one.
            self._compiled = self._compiled or torch.compile(core.forward, fullgraph=True, backend=self._backend)
            zeros = torch.zeros_like(inputs[:1]).expand(2, *inputs.shape[1:])
            reset = torch.zeros(zeros.shape[:2], dtype=torch.bool, device=inputs.device)
            initial = core.initial_state(inputs.shape[1])
            outputs, state, _ = unroll_step_by_step(core, zeros, reset, initial, None, self._step)
            total = torch.stack([end.sum() for end in (outputs, *state_leaves(state))]).sum()
            torch.autograd.grad(total, list(core.parameters()), allow_unused=True)
        except Exception as problem:  # a compiler may raise any exception
            self._works = False
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
            _report(core, f"is not compiled; its operations are launched one by one: {reason}")
            return False
        self._tried.add(kind)
        seconds = time.perf_counter() - begin
        _report(core, f"compiled in {seconds:.0f} s for {inputs.shape[1]} environments on {inputs.device}")
        return True


def _alike(leaf: Tensor) -> Tensor:
    """Make a leaf contiguous, with gradient, so that all steps of an unroll are one case for the compiler."""
    if leaf.is_floating_point() and not leaf.requires_grad:
        leaf = leaf.detach().requires_grad_()
    return leaf.contiguous()


def _report(core: Core, outcome: str) -> None:
    print(f"engram: {type(core).__name__} {outcome}", file=sys.stderr, flush=True)
