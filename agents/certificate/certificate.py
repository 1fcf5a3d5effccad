"""Certificate of a memory core: checks that it satisfies the contract of core.py exactly.

Every check runs the core on small random sequences with resets and compares actual and expected values and gradients,
in float64 if the core supports it, so that any difference is an error, not rounding. The checks in this module are on
use: types, weights, actors and learners, precision, long runs, learning. Each check takes a Probe and returns a detail
for its line or raises Failure.

Shapes: T steps, B environments, D input features.
"""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cores.core import Core, state_leaves
from . import memory_checks
from .probe import (
    ENVS,
    STEPS,
    Failure,
    Probe,
    by_unroll,
    cast,
    fail_if,
    floats,
    form,
    make_probe,
    require_equal,
    summed,
)

DELAY = 10  # Steps between the cue and the query
BATCH = 64  # Sequences per update of the cue task
NOISE = 0.3  # Standard deviation of the distraction in the cue task
SOLVED = 0.95  # Fraction of correct answers required for recall; guessing gives 0.5
LEARNING_RATES = (3e-3, 1e-2)  # Learning rates to try in order: the first suits wide cores, the second narrow cores


def shapes_and_types(probe: Probe) -> str:
    """Check that states are NamedTuples of tensors [B, ...], float32 or integer, of constant form."""
    core, inputs = probe.single, probe.inputs.float()
    state = core.initial_state(ENVS)
    expected = form(state)
    wrong = [leaf.dtype for leaf in floats(state) if leaf.dtype != torch.float32]
    fail_if(wrong, f"leaves of the initial state are {wrong}; the contract is float32")
    output, after = core(inputs[0], state)
    one = by_unroll(core, inputs, probe.reset, state)
    shapes = (
        ("the output of forward", output, [ENVS, core.output_size]),
        ("the output of unroll", one.outputs, [STEPS, ENVS, core.output_size]),
        ("the auxiliary loss", one.loss, [STEPS, ENVS]),
    )
    for name, tensor, shape in shapes:
        if tensor is not None:
            fail_if(list(tensor.shape) != shape, f"{name} has shape {list(tensor.shape)}, not {shape}")
    for name, other in (("a step", after), ("an unroll", one.state)):
        fail_if(form(other) != expected, f"the state after {name} is {form(other)}, the initial state {expected}")
    return expected


def every_parameter_learns(probe: Probe) -> str:
    """Check that each parameter receives a gradient, and that no two names share a parameter by accident."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in probe.core.named_parameters(remove_duplicate=False):
        names[parameter.data_ptr()].append(name)
    shared = [" = ".join(same) for same in names.values() if len(same) > 1]
    fail_if(shared, f"one parameter under several names: {'; '.join(shared)}")
    probe.core.zero_grad()
    summed(by_unroll(probe.core, probe.inputs, probe.reset, probe.state)).backward()
    idle = [n for n, p in probe.core.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    probe.core.zero_grad()
    fail_if(idle, f"no gradient for {', '.join(idle)}")
    return f"{len(names)} tensors"


def weights_are_the_core(probe: Probe) -> str:
    """Check that weights are complete: another core with the same state_dict computes the same outputs."""
    other = probe.make()
    other.load_state_dict(probe.single.state_dict())
    actual, expected = (
        by_unroll(core, probe.inputs.float(), probe.reset, core.initial_state(ENVS)).outputs
        for core in (other, probe.single)
    )
    require_equal(actual, expected, "outputs of a copy made from the state_dict", 1e-5)
    return "a copy made from its state_dict gives the same outputs"


def state_survives_pickling(probe: Probe) -> str:
    """Check that a state restored by pickle has the same type and values."""
    state = cast(probe.state, torch.float32)
    back = pickle.loads(pickle.dumps(state))
    fail_if(form(back) != form(state), f"{form(state)} came back as {form(back)}")
    pairs = zip(state_leaves(back), state_leaves(state), strict=True)
    fail_if(not all(torch.equal(a, b) for a, b in pairs), "the values changed")
    return "same type, same values"


def actor_and_learner_agree(probe: Probe) -> str:
    """Check that the actor's steps and the learner's unroll agree in float32, before and after a change of weights."""
    core, inputs = probe.make(), probe.inputs.float()
    first = cast(probe.state, torch.float32)

    def compare(when: str) -> float:
        outputs: list[Tensor] = []
        with torch.inference_mode():
            state, step = first, core.acting(first, ENVS)
            for t in range(STEPS):
                output, state = step(inputs[t], probe.reset[t], state)
                outputs.append(output.clone())  # the next step may overwrite it
        acted = torch.stack(outputs).clone()
        learned = by_unroll(core, inputs, probe.reset, first).outputs.detach()
        require_equal(learned, acted, f"outputs of learner and actor{when}", 1e-4)
        return (learned - acted).abs().max().item()

    error = compare("")
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(0.9)
    error = max(error, compare(" after a change of the weights"))
    return f"outputs to {error:.0e}" if error else "outputs bit for bit"


def long_run_stays_finite(probe: Probe) -> str:
    """Check that outputs and states stay finite in a long episode with large inputs."""
    piece = 100
    state, no_reset = probe.single.initial_state(1), torch.zeros(piece, 1, dtype=torch.bool)
    with torch.no_grad():
        for start in range(0, probe.long_run, piece):
            inputs = 3 * torch.randn(piece, 1, probe.inputs.shape[2])
            outputs, state, _ = probe.single.unroll(inputs, no_reset, state)
            finite = all(bool(part.isfinite().all()) for part in (outputs, *floats(state)))
            fail_if(not finite, f"not finite within {start + piece} steps")
    return f"{probe.long_run} steps"


def recalls_a_cue(probe: Probe) -> str:
    """Check that after brief training the core recalls which of two cues it received some steps ago."""
    fail_if(not state_leaves(probe.state), "no memory")
    progress = ""
    for learning_rate in LEARNING_RATES:
        accuracy, updates = _train(probe.make(), probe.inputs.shape[2], probe.recall_updates, learning_rate)
        progress = f"{accuracy:.0%} correct over {DELAY} steps after {updates} updates"
        if accuracy >= SOLVED:
            return progress
    raise Failure(f"{progress}; guessing gives 50%")


def _train(core: Core, input_size: int, updates: int, learning_rate: float) -> tuple[float, int]:
    """Train `core` (its weights change) to recall a cue; return the accuracy, 0.5 by guessing, and the number of
    updates. Training stops when the accuracy on new batches is high enough."""
    head = nn.Linear(core.output_size, 1)
    optimizer = torch.optim.Adam([*core.parameters(), *head.parameters()], learning_rate)
    accuracy = 0.0
    for update in range(1, updates + 1):
        logits, cue = _answers(core, head, input_size)
        accuracy = _accuracy(logits, cue)
        if update % 10 == 0 and accuracy >= SOLVED:
            with torch.no_grad():
                accuracy = sum(_accuracy(*_answers(core, head, input_size)) for _ in range(4)) / 4
            if accuracy >= SOLVED:
                return accuracy, update
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, cue).backward()
        nn.utils.clip_grad_norm_(core.parameters(), 1.0)
        optimizer.step()
    return accuracy, updates


def _answers(core: Core, head: nn.Linear, input_size: int) -> tuple[Tensor, Tensor]:
    """Return logits and cues (0 or 1), [BATCH] each, of new sequences of a minimal memory task. Feature 0 is the cue
    (-1 or 1) at the first step; feature 1 is the query, 1 at the last step; the others are noise at every step."""
    cue = torch.randint(2, (BATCH,)).float()
    inputs = NOISE * torch.randn(DELAY + 2, BATCH, input_size)
    inputs[:, :, :2] = 0
    inputs[0, :, 0] = 2 * cue - 1
    inputs[-1, :, 1] = 1
    no_reset = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    outputs = core.unroll(inputs, no_reset, core.initial_state(BATCH))[0]
    return head(outputs[-1]).squeeze(-1), cue


def _accuracy(logits: Tensor, cue: Tensor) -> float:
    return ((logits > 0) == cue.bool()).float().mean().item()


CHECKS: tuple[tuple[str, Callable[[Probe], str]], ...] = (
    ("shapes and types", shapes_and_types),
    ("step equals unroll", memory_checks.step_equals_unroll),
    ("chunks do not matter", memory_checks.chunks_do_not_matter),
    ("a reset clears the state", memory_checks.reset_starts_afresh),
    ("nothing leaks past a reset", memory_checks.nothing_passes_a_reset),
    ("environments are independent", memory_checks.environments_are_independent),
    ("nan does not spread", memory_checks.nan_stays),
    ("gradient reaches back", memory_checks.gradient_reaches_back),
    ("gradient cut at bptt_length", memory_checks.gradient_is_cut),
    ("every parameter learns", every_parameter_learns),
    ("state_dict is complete", weights_are_the_core),
    ("state survives pickling", state_survives_pickling),
    ("actor and learner agree", actor_and_learner_agree),
    ("a long run stays finite", long_run_stays_finite),
    ("recalls a cue", recalls_a_cue),
)
"""Lines of the certificate and their checks, in order."""


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
) -> Iterator[Line]:
    """Check cores created by `make` for inputs [B, input_size]; yield the certificate line by line. An exception in the
    core fails the line, not the program.

    Args:
        make: creates a core with new weights; called more than once.
        input_size: D, at least 3 (cue, signal and distraction).
        seed: seed of weights and inputs.
        long_run: steps of the long run.
        recall_updates: largest number of training updates per learning rate in the recall check.
    """
    torch.manual_seed(seed)
    probe: Probe | None = None
    for name, check in CHECKS:
        try:
            probe = probe or make_probe(make, input_size, long_run, recall_updates)
            yield Line(name, True, check(probe))
        except Failure as failure:
            yield Line(name, False, str(failure))
        except Exception as problem:
            yield Line(name, False, f"raised {type(problem).__name__}: {problem}")
        if probe is None:
            return


def core_size(core: Core) -> tuple[int, int]:
    """Return the number of parameters and the bytes of one environment's state."""
    leaves = state_leaves(core.initial_state(1))
    return sum(p.numel() for p in core.parameters()), sum(leaf.nbytes for leaf in leaves)
