"""Certificate of a memory core: checks that it satisfies the contract of core.py exactly.

Every check runs the core on small random sequences with resets and compares actual and expected values and gradients,
in float64 if the core supports it, so that any difference is an error, not rounding.

Shapes: T steps, B environments, D input features.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch

from ..cores.core import Core, state_leaves
from . import memory_checks, use_checks
from .probe import Failure, Probe, make_probe

Check: TypeAlias = tuple[str, Callable[[Probe], str]]
"""Name of a line and its check, which returns a detail or raises Failure."""

CHECKS: tuple[Check, ...] = (
    ("shapes and types", use_checks.shapes_and_types),
    ("step equals unroll", memory_checks.step_equals_unroll),
    ("chunks do not matter", memory_checks.chunks_do_not_matter),
    ("a reset clears the state", memory_checks.reset_starts_afresh),
    ("nothing leaks past a reset", memory_checks.nothing_passes_a_reset),
    ("environments are independent", memory_checks.environments_are_independent),
    ("the given state is used", memory_checks.given_state_counts),
    ("nan does not spread", memory_checks.nan_stays),
    ("gradient reaches back", memory_checks.gradient_reaches_back),
    ("gradient cut at bptt_length", memory_checks.gradient_is_cut),
    ("every parameter learns", use_checks.every_parameter_learns),
    ("state_dict is complete", use_checks.weights_are_the_core),
    ("state survives pickling", use_checks.state_survives_pickling),
    ("actor and learner agree", use_checks.actor_and_learner_agree),
    ("state in float32 under autocast", use_checks.float32_under_autocast),
    ("a long run stays finite", use_checks.long_run_stays_finite),
    ("recalls a cue", use_checks.recalls_a_cue),
)
"""Lines of the certificate, in order."""


class Line(NamedTuple):
    """Line of the certificate."""

    name: str
    passed: bool
    detail: str


def certify(
    make: Callable[[], Core],
    input_size: int,
    seed: int = 0,
    long_run: int = 10_000,
    recall_updates: int = 300,
    more: tuple[Check, ...] = (),
) -> Iterator[Line]:
    """Check cores created by `make` for inputs [B, input_size]; yield the certificate line by line.

    Args:
        make: creates a core with new weights; called more than once.
        input_size: D, at least 3 (cue, signal and distraction).
        seed: seed of weights and inputs.
        long_run: steps of the long run.
        recall_updates: largest number of training updates per learning rate in the recall check.
        more: additional checks from other packages, run last.
    """
    if input_size < 3:
        raise ValueError(f"input_size is {input_size}; allowed: at least 3 (cue, signal and distraction)")
    torch.manual_seed(seed)
    try:
        probe = make_probe(make, input_size, long_run, recall_updates)
    except Exception as problem:
        yield Line(CHECKS[0][0], False, _problem_text(problem))
        return
    for name, check in (*CHECKS, *more):
        try:
            yield Line(name, True, check(probe))
        except Exception as problem:
            yield Line(name, False, _problem_text(problem))


def _problem_text(problem: Exception) -> str:
    """Return the text of a failed line; an exception in the core fails the line, not the program."""
    return str(problem) if isinstance(problem, Failure) else f"raised {type(problem).__name__}: {problem}"


def core_size(core: Core) -> tuple[int, int]:
    """Return the number of parameters and the bytes of one environment's state."""
    leaves = state_leaves(core.initial_state(1))
    return sum(p.numel() for p in core.parameters()), sum(leaf.nbytes for leaf in leaves)
