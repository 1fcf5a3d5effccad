"""Checks of the certificate on memory: allowed influences, forward and backward.

Each check takes a Probe and returns a detail for its line or raises Failure. `step_equals_unroll` compares the core's
unroll with the loop over its steps; all other checks use the unroll.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..cores.core import map_state
from .probe import (
    ENVS,
    STEPS,
    Failure,
    Probe,
    another,
    by_steps,
    by_unroll,
    cast,
    fail_if,
    floats,
    gradients,
    in_pieces,
    require_equal,
    require_same,
    tracked,
)


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
    require_none((on_inputs[before], *on_state), "gradient passes a reset")
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
    others = on_inputs[:, 1:], *(grad[1:] for grad in on_state)
    require_none(others, "gradient passes from one environment to another")
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
        fail_if(bool((grad[t - 1] == 0).all()), f"no gradient from outputs at t >= {t} to the input at t = {t - 1}")
    return "from each step to the one before"


def gradient_is_cut(probe: Probe) -> str:
    """Check that gradients with a bptt_length are those of separate pieces: cut between pieces and nowhere else."""
    lengths = (1, 3, STEPS // 2, STEPS)
    for length in lengths:
        try:
            cut = lambda *args, length=length: by_unroll(*args, bptt_length=length)  # noqa: E731
            require_same(probe, cut, in_pieces(length, detach=True))
        except Failure as failure:
            raise Failure(f"bptt_length {length}: {failure}") from failure
    return f"at every {', '.join(map(str, lengths))} of {STEPS} steps"


def require_none(gradients: Iterable[Tensor], problem: str) -> None:
    """Raise Failure with the problem unless all gradients are zero."""
    fail_if(any(bool((gradient != 0).any()) for gradient in gradients), problem)
