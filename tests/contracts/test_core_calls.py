"""Every registered core called wrongly, in other types, on the meta device, by torch.func, after a fork or a pickle."""

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

from engram.agents.cores import core_names
from engram.agents.cores.compiled_steps import compile_steps
from engram.agents.cores.core import map_state, state_leaves
from engram.agents.cores.registry import core_parameters
from small_cores import INPUTS, small_core

STEPS, BATCH = 4, 5
every_core = pytest.mark.parametrize("name", core_names())


def call(core, steps=STEPS, batch=BATCH, size=INPUTS, **options):
    """Arguments of a valid unroll, or of one with other sizes."""
    dtype = options.get("dtype", torch.float32)
    inputs = torch.randn(steps, batch, size, dtype=dtype)
    reset = torch.zeros(steps, batch, dtype=torch.bool)
    reset[1, :1] = True
    return inputs, reset, core.initial_state(options.get("state", batch))


WRONG = """
import json
import sys
import torch
from engram.agents.cores.core import map_state, state_leaves
from small_cores import INPUTS, small_core

T, B = 4, 5

def mistakes(name):
    core = small_core(name)
    x, reset, state = torch.randn(T, B, INPUTS), torch.zeros(T, B, dtype=torch.bool), core.initial_state(B)
    double = map_state(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, state)
    unrolls = {
        "inputs of other width": (x[:, :, :-1], reset, state),
        "inputs in float64": (x.double(), reset, state),
        "reset [B, T]": (x, reset.T, state),
        "reset [T, 1]": (x, reset[:, :1], state),
        "reset shorter": (x, reset[:-1], state),
        "reset longer": (x, torch.cat([reset, reset]), state),
        "reset of floats": (x, reset.float(), state),
        "state of B = 1": (x, reset, core.initial_state(1)),
        "state of B + 1": (x, reset, core.initial_state(B + 1)),
        "state in float64": (x, reset, double),
        "state flattened": (x, reset, map_state(lambda leaf: leaf.flatten(), state)),
        "state elsewhere": (x, reset, map_state(lambda leaf: leaf.to("meta"), state)),
    }
    steps = {}
    if name in ("rmc", "conv-lstm"):
        steps = {
            "step, state of B = 1": (torch.randn(300, INPUTS), core.initial_state(1)),
            "step, state in float64": (x[0], double),
        }
    for method, calls in ((core.unroll, unrolls), (core, steps)):
        for what, arguments in calls.items():
            try:
                method(*arguments)
            except (ValueError, RuntimeError, IndexError):
                continue
            return f"{name}, {what}: accepted"
    outputs, after, _ = core.unroll(x, reset, state)
    core(x[0], state)
    outputs.sum().backward()
    return ""

for name in sys.argv[1:]:
    print(json.dumps([name, mistakes(name)]), flush=True)
"""

COMPILED = ["rmc", "lstm", "gru", "conv-lstm", "mnm-p", "mnm-g", "concrete", "parallel", "lru", "min-gru"]
"""Cores with an unroll in compiled code, which takes addresses."""


@pytest.fixture(scope="module")
def found():
    """Errors of each core, from a separate process: compiled code with a wrong shape may write anywhere."""
    path = os.pathsep.join(["tests/support", os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", WRONG, *COMPILED]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr[-2000:]


@pytest.mark.integration
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_accepts_no_other_shape_or_type(found, name):
    problems, errors = found
    assert problems.get(name, f"the process ended at {name}: {errors}") == ""


def test_the_message_of_a_wrong_call():
    core = small_core("rmc")
    inputs, reset, _ = call(core)
    expected = r"^RMC: memory is torch.float32 \[1, 3, 16\] on cpu; expected torch.float32 \[5, 3, 16\] on cpu"
    with pytest.raises(ValueError, match=expected):
        core.unroll(inputs, reset, core.initial_state(1))
    with pytest.raises(ValueError, match=r"^RMC: reset is torch.bool \[5, 4\] on cpu; expected torch.bool \[4, 5\]"):
        core.unroll(inputs, reset.T, core.initial_state(5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.integration)])
@every_core
def test_half_precision_works(name, dtype):
    if name in ("ffm", "lru", "rtu", "s5"):
        pytest.skip("torch has no complex numbers of half precision")
    core = small_core(name).to(dtype)
    inputs, reset, state = call(core, dtype=dtype)
    outputs, after, _ = core.unroll(inputs, reset, state)
    step, _ = core(inputs[0], state)
    assert {outputs.dtype, step.dtype, *(leaf.dtype for leaf in state_leaves(after) if leaf.is_floating_point())} == {
        dtype
    }
    outputs.float().sum().backward()
    exact = small_core(name)
    exact.load_state_dict({key: value.float() for key, value in core.state_dict().items()})
    wanted, _, _ = exact.unroll(
        inputs.float(), reset, map_state(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, state)
    )
    error = ((outputs.float() - wanted).norm() / wanted.norm()).item()
    # FWM and mLSTM divide by the size of what they read, which enlarges what rounding took away.
    assert error < (20 if name in ("fwm", "mlstm") else 2) * torch.finfo(dtype).eps


@pytest.mark.integration
@every_core
def test_a_core_on_the_meta_device_says_its_shapes_and_comes_back(name):
    with torch.device("meta"):
        core = small_core(name)
        outputs, _, _ = core.unroll(*call(core))
        step, _ = core(torch.randn(BATCH, INPUTS), core.initial_state(BATCH))
    assert outputs.is_meta
    assert list(outputs.shape) == [STEPS, *step.shape] == [STEPS, BATCH, core.output_size]
    filled, other = core.to_empty(device="cpu"), small_core(name)
    filled.load_state_dict(other.state_dict())
    arguments = call(other)
    assert torch.equal(filled.unroll(*arguments)[0], other.unroll(*arguments)[0])


@every_core
def test_a_core_that_was_in_bfloat16_is_as_good_as_new(name):
    """Constants that are no weights have all their digits again."""
    core = small_core(name, **({"base": 3.0} if "base" in core_parameters(name) else {}))
    weights = copy.deepcopy(core.state_dict())
    arguments = call(core)
    before = core.unroll(*arguments)[0]
    core.bfloat16().float().load_state_dict(weights)
    assert torch.equal(core.unroll(*arguments)[0], before)


@pytest.mark.integration
@every_core
def test_gradients_by_torch_func_are_those_of_autograd(name):
    torch.manual_seed(0)
    core = small_core(name).double()
    inputs, reset, state = call(core, dtype=torch.float64)
    weights = {key: value.detach() for key, value in core.named_parameters()}

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.core = core

        def forward(self, x):
            return self.core.unroll(x, reset, state)

    def loss(weights, inputs):
        named = {f"core.{key}": value for key, value in weights.items()}
        outputs, _, own = torch.func.functional_call(Whole(), named, (inputs,))
        return outputs.square().sum() + (0 if own is None else own.sum())

    found = torch.func.grad(loss)(weights, inputs)
    outputs, _, own = core.unroll(inputs, reset, state)
    total = outputs.square().sum() + (0 if own is None else own.sum())
    wanted = torch.autograd.grad(total, list(core.parameters()))
    for ours, theirs in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.integration
@every_core
def test_members_of_a_population_may_be_one_vmap(name):
    core = small_core(name).double()
    inputs, _, state = call(core, dtype=torch.float64)
    members = [small_core(name).double() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(members)

    def step(weights, buffers):
        return torch.func.functional_call(core, (weights, buffers), (inputs[0], state))[0]

    together = torch.func.vmap(step)(weights, buffers)
    for outputs, member in zip(together, members, strict=True):
        expected = torch.func.functional_call(core, member.state_dict(), (inputs[0], state))[0]
        torch.testing.assert_close(outputs, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.integration
@every_core
def test_a_core_is_pickled_and_copied_after_use(name, capsys):
    core = small_core(name)
    arguments = call(core)
    if name in ("gru", "fwm", "lru"):  # the tracer takes seconds for some
        compile_steps(core, "eager")
    wanted = core.unroll(*arguments)[0]
    for other in (pickle.loads(pickle.dumps(core)), copy.deepcopy(core)):
        torch.testing.assert_close(other.unroll(*arguments)[0], wanted)
        assert list(other.state_dict()) == list(core.state_dict())
    capsys.readouterr()


FORK = """
import os, sys
import torch
from engram.agents import threads
from small_cores import INPUTS, small_core

threads.num_cores = lambda: 2
threads.use_threads(2)
torch.set_num_threads(1)

def learn():
    core = small_core("rmc")
    x, reset = torch.randn(40, 128, INPUTS), torch.zeros(40, 128, dtype=torch.bool)
    core.unroll(x, reset, core.initial_state(128))[0].sum().backward()

learn()
child = os.fork()
if child == 0:
    learn()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.integration
def test_a_forked_child_learns_after_the_second_thread_was_used():
    path = os.pathsep.join(["tests/support", os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", FORK], env=os.environ | {"PYTHONPATH": path}, timeout=300, check=True)


@pytest.mark.integration
@pytest.mark.parametrize("layer", [0, 1])
def test_a_nan_in_a_bias_of_the_mlp_is_not_hidden_by_a_relu(layer):
    core = small_core("rmc")
    with torch.no_grad():
        core.mlp[layer].bias[3] = torch.nan
    assert core.unroll(*call(core))[0].isnan().any()
