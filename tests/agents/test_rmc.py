"""RMC against its equations written element by element, and the properties they imply."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.agents.cores import make_core, unroll
from engram.agents.cores.fast import elementwise, routes
from engram.agents.cores.fast.rmc import kernels
from engram.agents.cores.rmc import RMC, RMCState
from engram.base import compiled
from engram.base.sources import sources
from unrolls import (
    check_gradients,
    compare_chunks,
    compare_with_loop,
    random_inputs,
    random_state,
    randomize,
    refuses_second_derivatives,
)

SIZE = 5
SMALL = {"num_slots": 2, "num_heads": 2, "head_size": 3}
VARIANTS = [
    {**SMALL},
    {**SMALL, "gate": "unit", "key_size": 2},
    {**SMALL, "gate": None, "mlp_layers": 3},
    {**SMALL, "gate": None, "num_blocks": 2},
    {**SMALL, "gate": "unit", "num_blocks": 3, "mlp_layers": 3, "key_size": 4},
    {**SMALL, "num_slots": 1, "mlp_layers": 1, "input_bias": -0.5, "forget_bias": 2.0},
]

Rows = list[list[float]]


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param("compiled", marks=pytest.mark.integration),
        pytest.param("torch", marks=pytest.mark.statement),
    ],
)
def route(request, monkeypatch):
    """The compiled loop, for one block of attention on a CPU, or torch's operations, for all else."""
    monkeypatch.setattr(compiled, "enabled", request.param == "compiled")
    return request.param


def affine(x: list[float], weight: Rows, bias: list[float]) -> list[float]:
    return [b + sum(w * v for w, v in zip(row, x, strict=True)) for row, b in zip(weight, bias, strict=True)]


def layer_norm(x: list[float], gain: list[float], offset: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [g * (v - mean) / math.sqrt(variance + 1e-5) + o for v, g, o in zip(x, gain, offset, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_attention(rows: Rows, p: dict, block: str, heads: int, key_size: int, head_size: int) -> Rows:
    """A for every row: the equations of one block up to the sum with Z."""
    size = 2 * key_size + head_size
    qkv = [
        layer_norm(
            affine(row, p[f"{block}.qkv.weight"], p[f"{block}.qkv.bias"]),
            p[f"{block}.qkv_norm.weight"],
            p[f"{block}.qkv_norm.bias"],
        )
        for row in rows
    ]
    attended: Rows = [[] for _ in rows]
    for head in range(heads):
        parts = [row[head * size : (head + 1) * size] for row in qkv]
        for n, mine in enumerate(parts):
            scores = [sum(mine[i] * other[key_size + i] for i in range(key_size)) for other in parts]
            exponentials = [math.exp(score / math.sqrt(key_size)) for score in scores]
            for d in range(head_size):
                values = (e * other[2 * key_size + d] for e, other in zip(exponentials, parts, strict=True))
                attended[n].append(sum(values) / sum(exponentials))
    return attended


def slow_step(core: RMC, p: dict, x: list[float], memory: Rows, options: dict) -> Rows:
    """The next memory of one batch row, by the equations in RMC's description."""
    heads, head_size = options["num_heads"], options["head_size"]
    key_size = options.get("key_size", head_size)
    gate = options.get("gate", "memory")
    projected = affine(x, p["input_projection.weight"], p["input_projection.bias"])
    rows = [*memory, projected]
    for b in range(options.get("num_blocks", 1)):
        attended = slow_attention(rows, p, f"blocks.{b}", heads, key_size, head_size)
        for n, row in enumerate(rows):
            z = [u + v for u, v in zip(row, attended[n], strict=True)]
            z = layer_norm(z, p[f"blocks.{b}.attention_norm.weight"], p[f"blocks.{b}.attention_norm.bias"])
            y = z
            for layer in range(options.get("mlp_layers", 2)):
                y = [max(0.0, v) for v in y] if layer else y
                y = affine(y, p[f"mlp.{layer}.weight"], p[f"mlp.{layer}.bias"])
            z = [u + v for u, v in zip(z, y, strict=True)]
            rows[n] = layer_norm(z, p[f"blocks.{b}.mlp_norm.weight"], p[f"blocks.{b}.mlp_norm.bias"])
    if gate is None:
        return rows[:-1]
    from_input = affine(projected, p["input_gates.0.weight"], p["input_gates.0.bias"])
    new: Rows = []
    for old, candidate in zip(memory, rows[:-1], strict=True):
        squashed = [math.tanh(v) for v in old]
        from_memory = affine(squashed, p["memory_gates.0.weight"], p["memory_gates.0.bias"])
        gates = [u + v for u, v in zip(from_input, from_memory, strict=True)]
        half = len(gates) // 2
        row: list[float] = []
        for d, (kept, offered) in enumerate(zip(old, candidate, strict=True)):
            place = 0 if gate == "memory" else d
            i = sigmoid(gates[place] + options.get("input_bias", 0.0))
            f = sigmoid(gates[half + place] + options.get("forget_bias", 1.0))
            row.append(i * math.tanh(offered) + f * kept)
        new.append(row)
    return new


@pytest.mark.parametrize("options", VARIANTS)
def test_steps_are_the_equations(options):
    core = randomize(RMC(SIZE, **options))
    assert isinstance(core, RMC)
    parameters = {name: tensor.tolist() for name, tensor in core.named_parameters()}
    inputs, _ = random_inputs(SIZE, steps=3, rows=2)
    state = random_state(core, rows=2)
    memory = state.memory.tolist()
    for x in inputs:
        output, state = core(x, state)
        memory = [slow_step(core, parameters, row, rows, options) for row, rows in zip(x.tolist(), memory, strict=True)]
        expected = torch.tensor(memory, dtype=torch.float64)
        torch.testing.assert_close(state.memory, expected, atol=1e-9, rtol=1e-9)
        assert torch.equal(output, state.memory.flatten(1))


@pytest.mark.parametrize(
    "options", [*VARIANTS[:3], *(pytest.param(options, marks=pytest.mark.integration) for options in VARIANTS[3:])]
)
def test_gradients_are_those_of_finite_differences(options):
    check_gradients(randomize(RMC(3, **{**options, "head_size": 2})), 3)


@pytest.mark.parametrize(
    ("options", "bptt_length"),
    [*zip(VARIANTS, [None, 1, 3] * 3, strict=False), (VARIANTS[0], 1), (VARIANTS[0], 3), (VARIANTS[3], 1)],
)
def test_unroll_is_the_loop_over_steps(options, bptt_length):
    compare_with_loop(randomize(RMC(SIZE, **options)), SIZE, bptt_length)


@pytest.mark.parametrize("options", [VARIANTS[0], VARIANTS[4]])
def test_pieces_of_an_unroll_are_the_unroll(options):
    compare_chunks(randomize(RMC(SIZE, **options)), SIZE)


def test_at_full_size_in_float32_step_and_unroll_agree():
    """The products of this size take another route than the small ones."""
    torch.manual_seed(0)
    core = RMC(650)
    inputs, reset = random_inputs(650, steps=4, rows=32, density=0.1)
    inputs = inputs.float()
    outputs, _ = unroll(core, inputs, reset, core.initial_state(32))
    exact, _ = unroll(core.double(), inputs.double(), reset, core.initial_state(32))
    torch.testing.assert_close(outputs, exact.float(), atol=2e-5, rtol=0)


@pytest.mark.integration
@pytest.mark.parametrize("options", [{"gate": "unit"}, {"gate": "memory"}, {"key_size": 9}])
def test_both_routes_compute_the_same(options, monkeypatch):
    core = randomize(RMC(SIZE, **options | {"num_slots": 3, "num_heads": 2, "head_size": 7})).float()
    inputs, reset = random_inputs(SIZE)
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(compiled, "enabled", enabled)
        outputs, _ = unroll(core, inputs.float(), reset, core.initial_state(5))
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), list(core.parameters()))])
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, atol=1e-5 * max(1.0, torchs.abs().max().item()), rtol=1e-4)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_each_route_is_the_one_it_says(route, num_blocks):
    core = RMC(SIZE, **SMALL, num_blocks=num_blocks)
    inputs, reset = random_inputs(SIZE)
    memory = core.unroll(inputs.float(), reset, core.initial_state(5))[1].memory
    compiled = route == "compiled" and num_blocks == 1
    assert (memory.grad_fn.name() == "_UnrollBackward") == compiled


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_environments_are_computed_in_groups_of_any_size(monkeypatch, size):
    core = randomize(RMC(SIZE, **SMALL))
    inputs, reset = random_inputs(SIZE)
    found = []
    for group in (5, size):
        monkeypatch.setattr(routes, "GROUP", group)
        monkeypatch.setattr(routes, "GROUP_OF_A_STEP", group)
        outputs, state = unroll(core, inputs, reset, core.initial_state(5))
        with torch.no_grad():
            step, _ = core(inputs[0], state)
        found.append([outputs, step, *torch.autograd.grad(outputs.square().sum(), list(core.parameters()))])
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_tanh(dtype):
    x = torch.cat([torch.linspace(-12, 12, 10_001), torch.tensor([0.0, math.inf, -math.inf, math.nan, 1e-30])])
    x = x.to(dtype)
    y = torch.empty_like(x)
    elementwise.tanh(x.numpy(), y.numpy())
    torch.testing.assert_close(y, torch.tanh(x), atol=0, rtol=4e-7 if dtype == torch.float32 else 1e-15, equal_nan=True)


@pytest.mark.parametrize(
    ("count", "input_size", "options"),
    [
        (499_204, 650, {}),
        (761_344, 650, {"gate": "unit"}),
        (392_708, 234, {}),
        (343_044, 40, {"num_slots": 8, "num_heads": 8, "head_size": 32}),
    ],
)
def test_parameter_counts_of_the_paper(count, input_size, options):
    core = make_core("rmc", input_size, **options)
    assert sum(parameter.numel() for parameter in core.parameters()) == count


def test_initial_memory_is_the_identity_cut_or_padded():
    wide = RMC(SIZE, num_slots=2, num_heads=1, head_size=3).initial_state(4).memory
    assert wide.tolist() == [[[1, 0, 0], [0, 1, 0]]] * 4
    tall = RMC(SIZE, num_slots=3, num_heads=1, head_size=2).initial_state(1).memory
    assert tall.tolist() == [[[1, 0], [0, 1], [0, 0]]]
    assert wide.dtype == torch.float32


@pytest.mark.parametrize("gate", ["unit", "memory"])
def test_open_forget_and_shut_input_keep_the_memory(gate):
    core = randomize(RMC(SIZE, **SMALL, gate=gate, forget_bias=math.inf, input_bias=-math.inf))
    inputs, _ = random_inputs(SIZE)
    state = random_state(core)
    outputs, last = unroll(core, inputs, torch.zeros(inputs.shape[:2], dtype=torch.bool), state)
    assert torch.equal(last.memory, state.memory)
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), state.memory)
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_blocks_have_their_own_attention_and_one_mlp():
    names = {name for name, _ in RMC(SIZE, **SMALL, num_blocks=2).named_parameters()}
    for block in ("blocks.0", "blocks.1"):
        for part in ("qkv", "qkv_norm", "attention_norm", "mlp_norm"):
            assert {f"{block}.{part}.weight", f"{block}.{part}.bias"} <= names
    one, two = (sum(p.numel() for p in RMC(SIZE, **SMALL, num_blocks=n).mlp.parameters()) for n in (1, 2))
    assert one == two == 2 * (6 * 6 + 6)
    layers = list(RMC(SIZE, **SMALL).mlp)
    assert not torch.equal(layers[0].weight, layers[1].weight)


def test_weights_start_normal_cut_at_two_deviations():
    torch.manual_seed(0)
    core = RMC(400)
    for name, parameter in core.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" not in name:
            deviation = parameter.shape[1] ** -0.5
            assert parameter.abs().max() <= 2 * deviation
            # A normal cut at two deviations has 0.88 of its deviation left.
            if parameter.numel() > 10_000:
                assert parameter.std().item() == pytest.approx(0.8796 * deviation, rel=0.02)


def test_rows_of_a_batch_do_not_meet():
    core = randomize(RMC(SIZE, **SMALL))
    inputs, reset = random_inputs(SIZE)
    outputs, _ = unroll(core, inputs, reset, random_state(core))
    (gradient,) = torch.autograd.grad(outputs[:, 2].sum(), inputs)
    assert gradient[:, 2].any()
    gradient[:, 2] = 0
    assert not gradient.any()


def test_the_compiled_route_has_only_first_derivatives(route):
    if route == "torch":
        pytest.skip("the statement has all of them")
    refuses_second_derivatives(randomize(RMC(SIZE, **SMALL)), SIZE)


def test_gradient_may_be_asked_for_twice_when_the_graph_is_kept():
    core = randomize(RMC(SIZE, **SMALL))
    inputs, reset = random_inputs(SIZE)
    outputs, _ = unroll(core, inputs, reset, core.initial_state(5))
    first = torch.autograd.grad(outputs.sum(), inputs, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(outputs.sum(), inputs)[0])


def test_state_stays_float32_under_autocast():
    core = RMC(SIZE, **SMALL)
    inputs, reset = random_inputs(SIZE)
    inputs = inputs.float()
    plain, _ = unroll(core, inputs, reset, core.initial_state(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = unroll(core, inputs, reset, core.initial_state(5))
        assert isinstance(state, RMCState)
        assert state.memory.dtype == core(inputs[0].bfloat16(), state)[1].memory.dtype == torch.float32
    assert torch.equal(outputs, plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "slot"}, "gate 'slot'.*'unit', 'memory' or None"),
        ({"num_slots": 0}, "num_slots is 0; allowed: at least 1"),
        ({"mlp_layers": 0}, "mlp_layers is 0; allowed: at least 1"),
        ({"key_size": -1}, "key_size is -1; allowed: at least 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_core("rmc", SIZE, **options)


PROGRAM = """
import torch
from engram.agents.cores.rmc import RMC
torch.manual_seed(0)
torch.set_num_threads(1)
core = RMC(9, num_slots=3, num_heads=2, head_size=20)
inputs = torch.randn(12, 5, 9)
outputs, _, _ = core.unroll(inputs, torch.zeros(12, 5, dtype=torch.bool), core.initial_state(5))
found = torch.cat([g.flatten() for g in torch.autograd.grad(outputs.square().sum(), list(core.parameters()))])
print(found.double().sum().item().hex(), (found.double() * torch.arange(len(found))).sum().item().hex())
"""


def test_code_on_disk_is_renewed_when_a_part_of_it_changes():
    """Numba by itself would look at the file of the loop only, and go on with old parts."""
    names = {Path(file).name for file in sources(kernels.__name__)}
    assert {"kernels.py", "elementwise.py", "blas.py"} <= names
    assert "contract.py" not in names  # nothing of it is compiled


@pytest.mark.nightly
def test_code_found_on_disk_rounds_like_code_just_compiled(tmp_path, route):
    """Else a run that is resumed would not go on with the numbers of the one that was stopped."""
    if route == "torch":
        pytest.skip("nothing is compiled")
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbi"))
    assert said[0] == said[1]
