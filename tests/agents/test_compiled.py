"""The compiled step: the numbers of the eager one, the same names of weights, and a fallback that says why."""

import os
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.compiled_steps import compile_steps
from engram.agents.cores.core import Core
from unrolls import values_and_gradients

ROWS, SIZE = 3, 5
SMALL = {
    "rmc": {"num_slots": 2, "num_heads": 2, "head_size": 4},
    "mnm-p": {"hidden_size": 6, "memory_size": 4, "num_heads": 2},
    "mnm-g": {"hidden_size": 6, "memory_size": 4, "num_heads": 2},
    "fwm": {"hidden_size": 6, "memory_size": 4, "num_reads": 2},
    "lstm": {"hidden_size": 6},
    "gru": {"hidden_size": 6},
}
NO_COMPILER = """
import torch
from engram.agents.cores import make_core
from engram.agents.cores.compiled_steps import compile_steps
core = make_core("lstm", 5, hidden_size=6)
inputs, reset = torch.randn(3, 2, 5), torch.zeros(3, 2, dtype=torch.bool)
eager = core.unroll(inputs, reset, core.initial_state(2))[0]
compile_steps(core)
for _ in range(2):
    assert torch.equal(core.unroll(inputs, reset, core.initial_state(2))[0], eager)
"""


class Tiny(Core):
    """h' = tanh(x + W h)."""

    def __init__(self):
        super().__init__()
        self.output_size, self.weight = SIZE, torch.nn.Parameter(torch.randn(SIZE, SIZE))

    def initial_state(self, batch_size):
        return TinyState(torch.zeros(batch_size, SIZE))

    def forward(self, inputs, state):
        h = torch.tanh(inputs + state.h @ self.weight.T)
        return h, TinyState(h)


class TinyState(NamedTuple):
    h: torch.Tensor


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    """torch compiles one function at most eight times in a process, whichever test asked."""
    torch.compiler.reset()


@pytest.mark.parametrize("name", SMALL)
def test_values_and_gradients_are_those_of_the_eager_unroll(name, capsys):
    """Traced as for the compiler and run as traced: compiling it all takes minutes."""
    torch.manual_seed(0)
    compare(make_core(name, SIZE, **SMALL[name]).double(), "aot_eager", capsys)


def test_compiled_code_computes_the_same(capsys):
    torch.manual_seed(0)
    compare(Tiny(), "inductor", capsys)


def compare(core, backend, capsys):
    names = list(core.state_dict())
    inputs = torch.randn(6, ROWS, SIZE, dtype=next(core.parameters()).dtype, requires_grad=True)
    reset = torch.rand(6, ROWS) < 0.3
    results = []
    for compiled in (False, True):
        if compiled:
            compile_steps(core, backend)
        outputs, state, loss = core.unroll(inputs, reset, core.initial_state(ROWS), 4)
        results.append(values_and_gradients(core, outputs, state, [inputs], loss))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-5)
    said = capsys.readouterr().err
    assert "compiled in" in said
    assert "not compiled" not in said
    assert list(core.state_dict()) == names


def test_without_a_compiler_one_line_says_why_and_the_numbers_are_the_eager_ones(tmp_path):
    environment = os.environ | {"CXX": "/nowhere/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("engram:")]
    assert "LSTM is not compiled" in line
    assert "/nowhere/c++" in line


def test_a_core_without_a_loop_is_left_alone(capsys):
    core = make_core("concrete", SIZE, pool_size=4, num_pools=2)
    compile_steps(core)
    assert "unroll" not in vars(core)
    assert "Concrete has no loop over time" in capsys.readouterr().err


def test_ten_kinds_of_cores_are_compiled_in_one_process(capsys):
    """torch.compile's limit of eight recompilations counts for one code object; each class has its own."""
    for number in range(10):
        code = compile("lambda self, x, state: Tiny.forward(self, x, state)", __file__, "eval")
        forward = eval(code, {"Tiny": Tiny})  # a code object for each class
        kind = type(f"Tiny{number}", (Tiny,), {"forward": forward})
        core = kind()
        compile_steps(core, "eager")
        core.unroll(torch.randn(2, ROWS, SIZE), torch.zeros(2, ROWS, dtype=torch.bool), core.initial_state(ROWS))
    said = capsys.readouterr().err
    assert said.count("compiled in") == 10
    assert "not compiled" not in said
