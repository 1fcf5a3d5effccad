"""Checks of the certificate on use: types, weights, actors and learners, precision, long runs, learning.

Each check takes a Probe and returns a detail for its line or raises Failure.
"""

import pickle
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cores.core import Core, state_leaves
from .probe import ENVS, STEPS, Failure, Probe, by_steps, by_unroll, cast, fail_if, floats, form, require_equal, summed

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
    for leaf in state_leaves(state):
        fail_if(
            leaf.is_floating_point() and leaf.dtype != torch.float32,
            f"a leaf of the initial state is {leaf.dtype}; the contract is float32",
        )
    output, after = core(inputs[0], state)
    one = by_unroll(core, inputs, probe.reset, state)
    size = core.output_size
    shapes = (
        ("the output of forward", output, [ENVS, size]),
        ("the output of unroll", one.outputs, [STEPS, ENVS, size]),
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
    inputs = probe.inputs.float()
    actual = by_unroll(other, inputs, probe.reset, other.initial_state(ENVS)).outputs
    expected = by_unroll(probe.single, inputs, probe.reset, probe.single.initial_state(ENVS)).outputs
    require_equal(actual, expected, "outputs of a copy made from the state_dict", 1e-5)
    return "a copy made from its state_dict gives the same outputs"


def state_survives_pickling(probe: Probe) -> str:
    """Check that a state restored by pickle has the same type and values."""
    state = cast(probe.state, torch.float32)
    back = pickle.loads(pickle.dumps(state))
    fail_if(form(back) != form(state), f"{form(state)} came back as {form(back)}")
    fail_if(
        not all(torch.equal(a, b) for a, b in zip(state_leaves(back), state_leaves(state), strict=True)),
        "the values changed",
    )
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


def float32_under_autocast(probe: Probe) -> str:
    """Check that mixed precision does not affect the memory."""
    core, inputs = probe.single, probe.inputs.float()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        for run in (by_unroll, by_steps):
            state = run(core, inputs, probe.reset, core.initial_state(ENVS)).state
            for leaf in floats(state):
                fail_if(leaf.dtype != torch.float32, f"a leaf of the state became {leaf.dtype}")
    return "bfloat16 outside, float32 in the state"


def long_run_stays_finite(probe: Probe) -> str:
    """Check that outputs and states stay finite in a long episode with large inputs."""
    core, piece = probe.single, 100
    state = core.initial_state(1)
    no_reset = torch.zeros(piece, 1, dtype=torch.bool)
    with torch.no_grad():
        for start in range(0, probe.long_run, piece):
            inputs = 3 * torch.randn(piece, 1, probe.inputs.shape[2])
            outputs, state, _ = core.unroll(inputs, no_reset, state)
            fail_if(
                not all(bool(part.isfinite().all()) for part in (outputs, *floats(state))),
                f"not finite within {start + piece} steps",
            )
    return f"{probe.long_run} steps"


def recalls_a_cue(probe: Probe) -> str:
    """Check that after brief training the core recalls which of two cues it received some steps ago."""
    fail_if(not state_leaves(probe.state), "no memory")
    progress = ""
    for learning_rate in LEARNING_RATES:
        accuracy, updates = recall_accuracy(
            probe.make(), probe.inputs.shape[2], DELAY, probe.recall_updates, learning_rate
        )
        progress = f"{accuracy:.0%} correct over {DELAY} steps after {updates} updates"
        if accuracy >= SOLVED:
            return progress
    raise Failure(f"{progress}; guessing gives 50%")


def cue_recall(batch_size: int, delay: int, input_size: int) -> tuple[Tensor, Tensor]:
    """Generate sequences of a minimal memory task, [delay + 2, batch_size, input_size], and their cues, float32
    [batch_size] of 0 and 1. Feature 0 is the cue (-1 or 1) at the first step; feature 1 is the query, 1 at the last
    step; the other features are noise at every step."""
    cue = torch.randint(2, (batch_size,)).float()
    inputs = NOISE * torch.randn(delay + 2, batch_size, input_size)
    inputs[:, :, :2] = 0
    inputs[0, :, 0] = 2 * cue - 1
    inputs[-1, :, 1] = 1
    return inputs, cue


def recall_accuracy(core: Core, input_size: int, delay: int, updates: int, learning_rate: float) -> tuple[float, int]:
    """Train `core` (its weights change) to recall a cue over `delay` steps; return accuracy and number of updates.
    Training stops when the accuracy on new batches is high enough. Guessing gives 0.5."""
    head = nn.Linear(core.output_size, 1)
    optimizer = torch.optim.Adam([*core.parameters(), *head.parameters()], learning_rate)
    accuracy = 0.0
    for update in range(1, updates + 1):
        logits, cue = _answers(core, head, delay, input_size)
        accuracy = ((logits > 0) == cue.bool()).float().mean().item()
        if update % 10 == 0 and accuracy >= SOLVED:
            with torch.no_grad():
                trials = [_answers(core, head, delay, input_size) for _ in range(4)]
            accuracy = sum(((out > 0) == right.bool()).float().mean().item() for out, right in trials) / len(trials)
            if accuracy >= SOLVED:
                return accuracy, update
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, cue).backward()
        nn.utils.clip_grad_norm_(core.parameters(), 1.0)
        optimizer.step()
    return accuracy, updates


def _answers(core: Core, head: nn.Linear, delay: int, input_size: int) -> tuple[Tensor, Tensor]:
    """Return logits and cues [BATCH] of a new batch."""
    inputs, cue = cue_recall(BATCH, delay, input_size)
    reset = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    outputs = core.unroll(inputs, reset, core.initial_state(BATCH))[0]
    return head(outputs[-1]).squeeze(-1), cue
