"""`learn_initial_state`: resets use the parameter, gradients reach it, faster routes equal the plain statement."""

import pytest
import torch

from engram.agents.certificate.certificate import CHECKS
from engram.agents.certificate.probe import make_probe
from engram.agents.cores import core_names, make_core
from engram.agents.cores.core import reset_state, state_leaves
from engram.launch.export import command as export
from engram.launch.train import command as train
from engram.learners import checkpoints
from runs import TINY
from small_cores import INPUTS, small_core

WITHOUT = {
    "feedforward": "it has no real-valued state",
    "gtrxl": "its state is a window of past inputs, which is empty when an episode begins",
}
CORES = [name for name in core_names() if name not in WITHOUT]
DEFAULT = ("gru", "fwm", "lru", "delta-net")  # one for each way to unroll
T, B = 13, 4


def learned_core(name, dtype=torch.float64):
    torch.manual_seed(0)
    core = small_core(name, learn_initial_state=True).to(dtype)
    with torch.no_grad():
        for parameter in core.learned_state.values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return core


def plainly(core, inputs, reset, state, bptt_length):
    """The statement: parameters where an episode begins, one step after the other."""
    outputs = []
    for t in range(T):
        if t % (bptt_length or T) == 0:
            state = core.at_cut(type(state)(*detached(state)))
        state = reset_state(state, core.initial_state(B), reset[t])
        output, state = core(inputs[t], state)
        outputs.append(output)
    return torch.stack(outputs), state


def detached(state):
    return [part.detach() if isinstance(part, torch.Tensor) else type(part)(*detached(part)) for part in state]


@pytest.mark.parametrize(
    ("name", "bptt_length"),
    [
        *(pytest.param(name, 5, marks=[pytest.mark.integration] * (name not in DEFAULT)) for name in CORES),
        *(pytest.param(name, None, marks=pytest.mark.integration) for name in CORES),
    ],
)
def test_an_unroll_equals_the_statement(name, bptt_length):
    core = learned_core(name)
    inputs, reset = torch.randn(T, B, INPUTS, dtype=torch.float64), torch.rand(T, B) < 0.2
    reset[0, 0] = reset[6] = True
    results = []
    for run in (plainly, lambda *args: core.unroll(*args[1:])[:2]):
        first = core.initial_state(B)
        outputs, last = run(core, inputs, reset, type(first)(*detached(first)), bptt_length)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        total = (outputs * weights).sum()
        gradients = torch.autograd.grad(total, list(core.parameters()), materialize_grads=True)
        results.append([outputs, *state_leaves(last), *gradients])
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", DEFAULT)
def test_resets_use_the_parameters_and_the_gradient_reaches_them(name):
    core = learned_core(name)
    inputs, reset = torch.randn(T, B, INPUTS, dtype=torch.float64), torch.zeros(T, B, dtype=torch.bool)
    reset[4] = True
    before = core.unroll(inputs, reset, core.initial_state(B))[0]
    reached = torch.autograd.grad(before[4:].sum(), list(core.learned_state.values()), materialize_grads=True)
    assert any(gradient.abs().sum() > 0 for gradient in reached)
    with torch.no_grad():
        for parameter in core.learned_state.values():
            parameter.add_(0.5)
    assert not torch.allclose(core.unroll(inputs, reset, core.initial_state(B))[0][4:], before[4:])


@pytest.mark.parametrize("name", CORES)
def test_it_begins_as_the_core_without(name):
    torch.manual_seed(0)
    plain = small_core(name)
    torch.manual_seed(0)
    learned = small_core(name, learn_initial_state=True)
    for ours, theirs in zip(state_leaves(learned.initial_state(3)), state_leaves(plain.initial_state(3)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert isinstance(learned, type(plain))


OTHERS = ["lstm", "rmc", "mnm-p", "rtu", "mlstm"]


@pytest.mark.parametrize("name", ["gru", *(pytest.param(name, marks=pytest.mark.integration) for name in OTHERS)])
@pytest.mark.parametrize(
    ("line", "check"),
    [(line, check) for line, check in CHECKS if line not in ("recalls a cue", "gradient cut at bptt_length")],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_it_keeps_the_contract(name, line, check):
    torch.manual_seed(0)
    check(make_probe(lambda: small_core(name, learn_initial_state=True), INPUTS, long_run=60, recall_updates=0))


@pytest.mark.parametrize(("name", "reason"), WITHOUT.items())
def test_a_core_without_a_real_valued_state_is_refused(name, reason):
    with pytest.raises(ValueError, match=f"cannot learn its initial state: {reason}"):
        make_core(name, 4, learn_initial_state=True)
    with pytest.raises(ValueError, match="learn_initial_state is 3; allowed: True, False"):
        make_core(name, 4, learn_initial_state=3)


@pytest.mark.integration
def test_a_run_learns_it_resumes_and_exports(tmp_path):
    words = [*TINY, "--local", "--sync", "--lr-schedule", "constant", "--core-args", "hidden_size=8"]
    words += ["learn_initial_state=true"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert train.main([*words, "--total-steps", "120", "--run-dir", str(part)]) == 0
    first = weights(part)
    assert first["core.learned_state.h"].abs().sum() > 0
    assert train.main(["--resume", str(part), "--total-steps", "240"]) == 0
    assert train.main([*words, "--total-steps", "240", "--run-dir", str(whole)]) == 0
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(part)[name], value, rtol=0, atol=0)
    assert export.main([str(part), "--torch-export", str(tmp_path / "agent.pt2")]) == 0


def weights(run):
    return checkpoints.load(checkpoints.latest(run / "checkpoints"))["members"][0]["learner"]["agent"]
