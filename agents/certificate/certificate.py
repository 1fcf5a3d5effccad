"""Certificate of a memory core: checks that it satisfies the contract of core.py exactly. Each check takes a
Probe, and returns a detail for its line or raises EngramError."""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...base.errors import EngramError, refuse
from ..cores.core import Core, map_state, state_leaves
from .probe import (
    ENVS,
    STEPS,
    Probe,
    another,
    by_steps,
    by_unroll,
    cast,
    floats,
    form,
    gradients,
    in_pieces,
    make_probe,
    require_equal,
    require_same,
    summed,
    tracked,
)

DELAY = 10  # Steps between the cue and the query
BATCH = 64  # Sequences per update of the cue task
NOISE = 0.3  # Standard deviation of the distraction in the cue task
SOLVED = 0.95  # Fraction of correct answers required for recall; guessing gives 0.5
LEARNING_RATES = (3e-3, 1e-2)  # Learning rates to try in order: the first suits wide cores, the second narrow cores
PIECE = 100  # Steps per unroll of the long run


def shapes_and_types(probe: Probe) -> str:
    """Check that states are NamedTuples of tensors [B, ...], float32 or integer, of constant form."""
    core, inputs = probe.single, probe.inputs.float()
    state = core.initial_state(ENVS)
    expected = form(state)
    wrong = [leaf.dtype for leaf in floats(state) if leaf.dtype != torch.float32]
    refuse(wrong, f"leaves of the initial state are {wrong}; the contract is float32")
    output, after = core(inputs[0], state)
    one, size = by_unroll(core, inputs, probe.reset, state), core.output_size
    results = {"output of forward": output, "output of unroll": one.outputs, "auxiliary loss": one.loss}
    for (name, tensor), shape in zip(results.items(), ([ENVS, size], [STEPS, ENVS, size], [STEPS, ENVS]), strict=True):
        if tensor is not None:
            refuse(list(tensor.shape) != shape, f"the {name} has shape {list(tensor.shape)}, not {shape}")
    for name, other in (("a step", after), ("an unroll", one.state)):
        refuse(form(other) != expected, f"the state after {name} is {form(other)}, the initial state {expected}")
    return expected


def step_equals_unroll(probe: Probe) -> str:
    """Check that the unroll equals the loop over steps: outputs, states, losses and every gradient."""
    require_same(probe, by_unroll, by_steps)
    return f"{STEPS} steps with resets, values and gradients"


def chunks_do_not_matter(probe: Probe) -> str:
    """Check that consecutive unrolls, each from the last state of the previous one, equal a single unroll."""
    for length in (1, 7, STEPS // 2):
        require_same(probe, by_unroll, in_pieces(length))
    return f"{STEPS} steps in pieces of 1, 7 and {STEPS // 2}"


def reset_starts_afresh(probe: Probe) -> str:
    """Check that one long sequence with resets equals several short sequences from the initial state."""
    count = 0
    whole = by_unroll(probe.core, probe.inputs, probe.reset, probe.state).each()
    for env in range(ENVS):
        cuts = [t for t in range(1, STEPS) if probe.reset[t, env]]
        for start, end in zip([0, *cuts], [*cuts, STEPS], strict=True):
            state = map_state(lambda leaf, env=env: leaf[env : env + 1], probe.state)
            if start > 0 or probe.reset[0, env]:
                state = cast(probe.core.initial_state(1), probe.inputs.dtype)
            inputs = probe.inputs[start:end, env : env + 1]
            alone = by_unroll(probe.core, inputs, torch.zeros(end - start, 1, dtype=torch.bool), state).each()
            label = f"outputs of steps {start} to {end - 1}, in the long sequence and alone,"
            require_equal(whole[start:end, env : env + 1], alone, label, probe.tolerance)
            count += 1
    return f"{count} sequences, joined and alone"


def nothing_passes_a_reset(probe: Probe) -> str:
    """Check that inputs before a reset neither affect outputs after it nor receive gradients from these outputs."""
    when = torch.tensor([STEPS // 4 + env * STEPS // 8 for env in range(ENVS)])
    time = torch.arange(STEPS).unsqueeze(1)
    before, reset = time < when, time == when
    inputs, state = tracked(probe)
    after = by_unroll(probe.core, inputs, reset, state).each()[~before]
    changed = torch.where(before.unsqueeze(-1), 3 - 2 * probe.inputs, probe.inputs)
    again = by_unroll(probe.core, changed, reset, another(probe.state)).each()[~before]
    require_equal(again, after, "outputs after a reset, with different histories,", probe.tolerance)
    on_inputs, *on_state = gradients(after.sum(), [inputs, *floats(state)])
    passes = on_inputs[before].any() or any(grad.any() for grad in on_state)
    refuse(passes, "gradient passes a reset")
    return "by values and by gradients"


def environments_are_independent(probe: Probe) -> str:
    """Check that an environment's outputs depend neither on other environments nor on their number."""
    inputs, state = tracked(probe)
    outputs = by_unroll(probe.core, inputs, probe.reset, state).each()
    other_inputs = torch.cat([probe.inputs[:, :1], 3 - 2 * probe.inputs[:, 1:]], 1)
    other_state = map_state(lambda a, b: torch.cat([a[:1], b[1:]]), probe.state, another(probe.state))
    among_others = by_unroll(probe.core, other_inputs, probe.reset, other_state).each()
    require_equal(among_others[:, 0], outputs[:, 0], "environment 0 in a different batch:", probe.tolerance)
    third = map_state(lambda leaf: leaf[2:3], probe.state)
    alone = by_unroll(probe.core, probe.inputs[:, 2:3], probe.reset[:, 2:3], third).each()
    require_equal(alone, outputs[:, 2:3], "environment 2 in a batch of one:", probe.tolerance)
    on_inputs, *on_state = gradients(outputs[:, 0].sum(), [inputs, *floats(state)])
    passes = on_inputs[:, 1:].any() or any(grad[1:].any() for grad in on_state)
    refuse(passes, "gradient passes from one environment to another")
    return "by values, by gradients and in a batch of one"


def nan_stays(probe: Probe) -> str:
    """Check that nan in one environment affects no other environment, and that the next reset removes it."""
    when = STEPS // 2
    reset = torch.zeros_like(probe.reset)
    reset[when, 0] = True
    inputs = probe.inputs.clone()
    inputs[when - 1, 0] = torch.nan

    def kill(leaf: Tensor) -> Tensor:
        return torch.cat([torch.full_like(leaf[:1], torch.nan), leaf[1:]]) if leaf.is_floating_point() else leaf

    clean = by_unroll(probe.core, probe.inputs, reset, probe.state).each()
    outputs = by_unroll(probe.core, inputs, reset, map_state(kill, probe.state)).each()
    require_equal(outputs[:, 1:], clean[:, 1:], "outputs alongside an environment with nan", probe.tolerance)
    label = "outputs after the reset of an environment with nan"
    require_equal(outputs[when:, 0], clean[when:, 0], label, probe.tolerance)
    return "neither in other environments nor after its reset"


def gradient_reaches_back(probe: Probe) -> str:
    """Check that gradients of later outputs reach earlier inputs if there is no reset."""
    if not floats(probe.state):
        return "the core has no state"
    no_reset = torch.zeros_like(probe.reset[: STEPS // 2])
    inputs, state = tracked(probe)
    outputs = by_unroll(probe.core, inputs[: len(no_reset)], no_reset, state).outputs
    for t in range(1, len(no_reset)):
        (grad,) = gradients(outputs[t:].square().sum(), [inputs], retain=True)
        refuse(bool((grad[t - 1] == 0).all()), f"no gradient from outputs at t >= {t} to the input at t = {t - 1}")
    return "from each step to the one before"


def gradient_is_cut(probe: Probe) -> str:
    """Check that gradients with a bptt_length are those of separate pieces: cut between pieces and nowhere else."""
    lengths = (1, 3, STEPS // 2, STEPS)
    for length in lengths:
        try:
            require_same(probe, partial(by_unroll, bptt_length=length), in_pieces(length, detach=True))
        except EngramError as failure:
            raise EngramError(f"bptt_length {length}: {failure}") from failure
    return f"at every {', '.join(map(str, lengths))} of {STEPS} steps"


def every_parameter_learns(probe: Probe) -> str:
    """Check that each parameter receives a gradient, and that no two names share a parameter by accident."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in probe.core.named_parameters(remove_duplicate=False):
        names[parameter.data_ptr()].append(name)
    shared = [" = ".join(same) for same in names.values() if len(same) > 1]
    refuse(shared, f"one parameter under several names: {'; '.join(shared)}")
    probe.core.zero_grad()
    summed(by_unroll(probe.core, probe.inputs, probe.reset, probe.state)).backward()
    idle = [n for n, p in probe.core.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    probe.core.zero_grad()
    refuse(idle, f"no gradient for {', '.join(idle)}")
    return f"{len(names)} tensors"


def weights_are_the_core(probe: Probe) -> str:
    """Check that weights are complete: another core with the same state_dict computes the same outputs."""
    other, inputs = probe.make(), probe.inputs.float()
    other.load_state_dict(probe.single.state_dict())
    cores = (other, probe.single)
    actual, expected = (by_unroll(core, inputs, probe.reset, core.initial_state(ENVS)).outputs for core in cores)
    require_equal(actual, expected, "outputs of a copy made from the state_dict", 1e-5)
    return "a copy made from its state_dict gives the same outputs"


def state_survives_pickling(probe: Probe) -> str:
    """Check that a state restored by pickle has the same type and values."""
    state = cast(probe.state, torch.float32)
    back = pickle.loads(pickle.dumps(state))
    refuse(form(back) != form(state), f"{form(state)} came back as {form(back)}")
    pairs = zip(state_leaves(back), state_leaves(state), strict=True)
    refuse(not all(torch.equal(a, b) for a, b in pairs), "the values changed")
    return "same type, same values"


def actor_and_learner_agree(probe: Probe) -> str:
    """Check that the actor's steps and the learner's unroll agree in float32, before and after a change of weights."""
    core, inputs, error = probe.make(), probe.inputs.float(), 0.0
    first = cast(probe.state, torch.float32)
    for when in ("", " after a change of the weights"):
        outputs: list[Tensor] = []
        with torch.inference_mode():
            state, step = first, core.acting(first, ENVS)
            for x, reset in zip(inputs, probe.reset, strict=True):
                output, state = step(x, reset, state)
                outputs.append(output.clone())  # the next step may overwrite it
        acted = torch.stack(outputs).clone()
        learned = by_unroll(core, inputs, probe.reset, first).outputs.detach()
        require_equal(learned, acted, f"outputs of learner and actor{when}", 1e-4)
        error = max(error, (learned - acted).abs().max().item())
        with torch.no_grad():
            for parameter in core.parameters():
                parameter.mul_(0.9)
    return f"outputs to {error:.0e}" if error else "outputs bit for bit"


def long_run_stays_finite(probe: Probe) -> str:
    """Check that outputs and states stay finite in a long episode with large inputs."""
    state, no_reset = probe.single.initial_state(1), torch.zeros(PIECE, 1, dtype=torch.bool)
    with torch.no_grad():
        for start in range(0, probe.long_run, PIECE):
            inputs = 3 * torch.randn(PIECE, 1, probe.inputs.shape[2])
            outputs, state, _ = probe.single.unroll(inputs, no_reset, state)
            finite = all(bool(part.isfinite().all()) for part in (outputs, *floats(state)))
            refuse(not finite, f"not finite within {start + PIECE} steps")
    return f"{probe.long_run} steps"


def recalls_a_cue(probe: Probe) -> str:
    """Check that after brief training the core recalls which of two cues it received some steps ago."""
    refuse(not state_leaves(probe.state), "no memory")
    input_size, progress = probe.inputs.shape[2], ""
    for learning_rate in LEARNING_RATES:
        core, accuracy, update = probe.make(), 0.0, 0
        head = nn.Linear(core.output_size, 1)
        optimizer = torch.optim.Adam([*core.parameters(), *head.parameters()], learning_rate)
        for update in range(1, probe.recall_updates + 1):
            logits, cue = _answers(core, head, input_size)
            accuracy = _accuracy(logits, cue)
            if update % 10 == 0 and accuracy >= SOLVED:
                with torch.no_grad():
                    accuracy = sum(_accuracy(*_answers(core, head, input_size)) for _ in range(4)) / 4
                if accuracy >= SOLVED:
                    break
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits, cue).backward()
            nn.utils.clip_grad_norm_(core.parameters(), 1.0)
            optimizer.step()
        progress = f"{accuracy:.0%} correct over {DELAY} steps after {update} updates"
        if accuracy >= SOLVED:
            return progress
    raise EngramError(f"{progress}; guessing gives 50%")


def _answers(core: Core, head: nn.Linear, input_size: int) -> tuple[Tensor, Tensor]:
    """Return logits and cues (0 or 1), [BATCH] each, of new sequences: feature 0 is the cue (-1 or 1) at the first
    step, feature 1 the query, 1 at the last step; the others are noise."""
    cue = torch.randint(2, (BATCH,)).float()
    inputs = NOISE * torch.randn(DELAY + 2, BATCH, input_size)
    inputs[:, :, :2] = 0
    inputs[0, :, 0], inputs[-1, :, 1] = 2 * cue - 1, 1
    no_reset = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    outputs = core.unroll(inputs, no_reset, core.initial_state(BATCH))[0]
    return head(outputs[-1]).squeeze(-1), cue


def _accuracy(logits: Tensor, cue: Tensor) -> float:
    return ((logits > 0) == cue.bool()).float().mean().item()


CHECKS: tuple[tuple[str, Callable[[Probe], str]], ...] = (  # lines of the certificate, in order
    ("shapes and types", shapes_and_types),
    ("step equals unroll", step_equals_unroll),
    ("chunks do not matter", chunks_do_not_matter),
    ("a reset clears the state", reset_starts_afresh),
    ("nothing leaks past a reset", nothing_passes_a_reset),
    ("environments are independent", environments_are_independent),
    ("nan does not spread", nan_stays),
    ("gradient reaches back", gradient_reaches_back),
    ("gradient cut at bptt_length", gradient_is_cut),
    ("every parameter learns", every_parameter_learns),
    ("state_dict is complete", weights_are_the_core),
    ("state survives pickling", state_survives_pickling),
    ("actor and learner agree", actor_and_learner_agree),
    ("a long run stays finite", long_run_stays_finite),
    ("recalls a cue", recalls_a_cue),
)


class Line(NamedTuple):
    name: str
    passed: bool
    detail: str


def certify(
    make: Callable[[], Core], input_size: int, seed: int = 0, long_run: int = 10_000, recall_updates: int = 300
) -> Iterator[Line]:
    """Check cores created by `make`, which is called more than once, for inputs [B, input_size], at least 3 features,
    and yield the certificate line by line. An exception in the core fails the line. `long_run` counts steps;
    `recall_updates` limits the updates of the recall check per learning rate."""
    torch.manual_seed(seed)
    probe: Probe | None = None
    for name, check in CHECKS:
        try:
            probe = probe or make_probe(make, input_size, long_run, recall_updates)
            yield Line(name, True, check(probe))
        except EngramError as failure:
            yield Line(name, False, str(failure))
        except Exception as problem:
            yield Line(name, False, f"raised {type(problem).__name__}: {problem}")
        if probe is None:
            return


def core_size(core: Core) -> tuple[int, int]:
    """Return the number of parameters and the bytes of one environment's state."""
    leaves = state_leaves(core.initial_state(1))
    return sum(p.numel() for p in core.parameters()), sum(leaf.nbytes for leaf in leaves)
