"""Where a compiled route stands in for a core's statement, and where it steps aside."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from torch.nn.utils import parametrizations

from engram.agents.cores.conv_lstm import ConvLSTM
from engram.agents.cores.core import unroll_step_by_step
from engram.agents.cores.gru import GRU
from engram.agents.cores.lstm import LSTM
from engram.agents.cores.mnm import MNM, MNMg, MNMp
from engram.agents.cores.rmc import RMC, RMCState
from engram.base import compiled

FAST = [RMC, LSTM, GRU, ConvLSTM, MNMp, MNMg]
T, B, D = 3, 4, 5


def made(kind, **options):
    torch.manual_seed(0)
    if kind is RMC:
        return RMC(D, num_slots=2, num_heads=1, head_size=4, **options)
    if kind is ConvLSTM:
        return kind(D, height=2, width=2, channels=1, hidden_channels=2)
    return kind(D, hidden_size=4, memory_size=4) if issubclass(kind, MNM) else kind(D, hidden_size=4)


def parts(core):
    """Parts that are called once per step, each with the name of one of its weights."""
    if isinstance(core, RMC):
        return [(core.blocks[0].qkv, "weight"), (core.mlp[1], "weight")]
    if isinstance(core, MNM):
        return [(core.controller.cell, "weight_hh"), (core.interaction, "weight"), (core.rate, "weight")]
    if isinstance(core, ConvLSTM):
        return [(core.state_conv, "weight")]
    return [(core.cell, "weight_hh")]


def call(core):
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[1, 2] = True
    return torch.randn(T, B, D, generator=torch.Generator().manual_seed(1)), reset, core.initial_state(B)


def stands(core):
    return core.compiles(torch.zeros(1, B, D))


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.setattr(compiled, "enabled", True)


@pytest.mark.parametrize("kind", FAST)
def test_an_untouched_core_has_its_compiled_route(kind):
    assert stands(made(kind))


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_of_parts_are_called(kind, hook):
    for number in range(len(parts(made(kind)))):
        core, seen = made(kind), []
        getattr(parts(core)[number][0], hook)(lambda *arguments, seen=seen: seen.append(1))
        assert not stands(core)
        inputs, reset, state = call(core)
        core.unroll(inputs.requires_grad_(), reset, state)[0].sum().backward()
        assert len(seen) == T


@pytest.mark.parametrize("kind", FAST)
def test_parametrized_weights_count(kind):
    core = made(kind)
    plain = core.unroll(*call(core))[0]
    part, name = parts(core)[0]
    parametrizations.weight_norm(part, name)
    with torch.no_grad():
        getattr(part.parametrizations, name).original0.mul_(3)
    assert not stands(core)
    assert not torch.allclose(core.unroll(*call(core))[0], plain)


def test_another_eps_counts():
    core = made(RMC)
    plain = core.unroll(*call(core))[0]
    core.blocks[0].mlp_norm.eps = 1.0
    assert not stands(core)
    assert not torch.allclose(core.unroll(*call(core))[0], plain)


def test_another_eps_of_mnm_counts():
    core = MNMp(D, hidden_size=4, memory_size=4, layer_norm=True)
    assert stands(core)
    core.norm.eps = 1.0
    assert not stands(core)


class Zero(RMC):
    def initial_state(self, batch_size):
        return RMCState(torch.zeros(batch_size, self.num_slots, self.width))


class Negative(LSTM):
    def forward(self, inputs, state):
        output, state = super().forward(inputs, state)
        return -output, state


def test_another_initial_state_is_that_of_a_reset():
    below, changed = Zero(D, 2, 1, 4), made(RMC)
    changed.load_state_dict(below.state_dict())
    inputs, reset, state = call(below)
    wanted = unroll_step_by_step(below, inputs, reset, state)[0]
    changed.initial_state = below.initial_state
    for core in (below, changed):
        torch.testing.assert_close(core.unroll(inputs, reset, state)[0], wanted)


def test_another_step_is_that_of_the_unroll():
    core = Negative(D, 4)
    assert torch.equal(core.unroll(*call(core))[0], unroll_step_by_step(core, *call(core))[0])


@pytest.mark.parametrize("kind", FAST)
def test_a_part_in_another_type_has_no_compiled_route(kind):
    core = made(kind)
    parts(core)[-1][0].double()
    assert not stands(core)


def test_several_blocks_have_no_compiled_route():
    assert not stands(made(RMC, num_blocks=2))


def test_one_word_in_the_environment_switches_them_off(monkeypatch):
    """The module is executed again under other names, as the first import of a process executes it."""
    for word, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("ENGRAM_COMPILED", word)
        spec = importlib.util.spec_from_file_location(f"{compiled.__name__}_{word}", compiled.__file__)
        again = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
        assert again.enabled == expected


def test_using_a_core_changes_no_setting_of_the_process():
    program = """if True:
        import torch
        from threadpoolctl import threadpool_info
        import scipy.linalg.cython_blas
        before = threadpool_info()
        from engram.agents.cores import make_core
        core = make_core("rmc", 5, num_slots=2, num_heads=1, head_size=4)
        core(torch.randn(2, 5), core.initial_state(2))
        assert threadpool_info() == before, threadpool_info()
    """
    subprocess.run([sys.executable, "-c", program], check=True)
