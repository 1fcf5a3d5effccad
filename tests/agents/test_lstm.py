"""LSTM and GRU against their equations written element by element, and against torch's own."""

import math

import pytest
import torch

from engram.agents.cores import make_core, unroll
from engram.agents.cores.fast import routes
from engram.base import compiled
from unrolls import (
    check_gradients,
    compare_chunks,
    compare_with_loop,
    random_inputs,
    random_state,
    randomize,
    refuses_second_derivatives,
)

SIZE, HIDDEN = 5, 3
BOTH = pytest.mark.parametrize("name", ["lstm", "gru"])


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def route(request, monkeypatch):
    """The compiled loops, on a CPU, or torch's operations, for all else."""
    monkeypatch.setattr(compiled, "enabled", request.param == "compiled")
    return request.param


def small(name):
    return randomize(make_core(name, SIZE, hidden_size=HIDDEN))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def pre_activation(core, place, x, h):
    """Row `place` of W_x x + b_x and of W_h h + b_h."""
    cell = core.cell
    from_input = cell.bias_ih[place].item() + sum(w * v for w, v in zip(cell.weight_ih[place].tolist(), x, strict=True))
    from_state = cell.bias_hh[place].item() + sum(w * v for w, v in zip(cell.weight_hh[place].tolist(), h, strict=True))
    return from_input, from_state


def slow_lstm(core, x, h, c):
    new_h, new_c = [], []
    for d in range(HIDDEN):
        i, f, g, o = (sum(pre_activation(core, block * HIDDEN + d, x, h)) for block in range(4))
        cell = sigmoid(f) * c[d] + sigmoid(i) * math.tanh(g)
        new_c.append(cell)
        new_h.append(sigmoid(o) * math.tanh(cell))
    return new_h, new_c


def slow_gru(core, x, h):
    new_h = []
    for d in range(HIDDEN):
        (x_r, h_r), (x_z, h_z), (x_n, h_n) = (pre_activation(core, block * HIDDEN + d, x, h) for block in range(3))
        r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
        new_h.append((1 - z) * math.tanh(x_n + r * h_n) + z * h[d])
    return (new_h,)


@BOTH
def test_steps_are_the_equations(name):
    core = small(name)
    slow = slow_lstm if name == "lstm" else slow_gru
    inputs, _ = random_inputs(SIZE, steps=3)
    state = random_state(core)
    rows = list(zip(*(leaf.tolist() for leaf in state), strict=True))
    for x in inputs:
        output, state = core(x, state)
        rows = [slow(core, features, *leaves) for features, leaves in zip(x.tolist(), rows, strict=True)]
        for leaf, expected in zip(state, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(leaf, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9)
        assert torch.equal(output, state.h)


@pytest.mark.integration
@BOTH
def test_gradients_are_those_of_finite_differences(name):
    check_gradients(small(name), SIZE)


@BOTH
@pytest.mark.parametrize("bptt_length", [None, 1, 3])
def test_unroll_is_the_loop_over_steps(name, bptt_length):
    compare_with_loop(small(name), SIZE, bptt_length)


@BOTH
def test_each_route_is_the_one_it_says(name, route):
    inputs, reset = random_inputs(SIZE)
    core = small(name)
    h = unroll(core, inputs, reset, core.initial_state(5))[1].h
    assert (h.grad_fn.name() == "_UnrollBackward") == (route == "compiled")


@BOTH
@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_environments_are_computed_in_groups_of_any_size(monkeypatch, name, size):
    core = small(name)
    inputs, reset = random_inputs(SIZE)
    found = []
    for group in (5, size):
        monkeypatch.setattr(routes, "group_size", lambda batch, group=group: group)
        monkeypatch.setattr(routes, "GROUP_OF_A_STEP", group)
        outputs, state = unroll(core, inputs, reset, core.initial_state(5))
        with torch.no_grad():
            step, _ = core(inputs[0], state)
        found.append([outputs, step, *torch.autograd.grad(outputs.square().sum(), list(core.parameters()))])
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, atol=1e-10, rtol=1e-10)


@BOTH
def test_pieces_of_an_unroll_are_the_unroll(name):
    compare_chunks(small(name), SIZE)


@BOTH
def test_without_resets_it_is_torchs_layer(name):
    """At a size whose products take the fast route, in float32."""
    torch.manual_seed(0)
    core = make_core(name, 100)
    layer = (torch.nn.LSTM if name == "lstm" else torch.nn.GRU)(100, 256)
    layer.load_state_dict({f"{key}_l0": value for key, value in core.cell.state_dict().items()})
    inputs = torch.randn(6, 32, 100, requires_grad=True)
    ours, _ = unroll(core, inputs, torch.zeros(6, 32, dtype=torch.bool), core.initial_state(32))
    theirs, _ = layer(inputs)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
    weights = torch.randn(ours.shape)
    mine = torch.autograd.grad((ours * weights).sum(), [inputs, *core.parameters()])
    other = torch.autograd.grad((theirs * weights).sum(), [inputs, *layer.parameters()])
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * b.abs().max().item(), rtol=0)


@pytest.mark.parametrize(("hidden", "count"), [(512, 1_089_540), (4096, 67_436_548)])
def test_parameter_counts_of_the_published_agents(hidden, count):
    """17 inputs, three actions and a value: the LSTM agents of the FWM paper's graph task."""
    with torch.device("meta"):
        core = make_core("lstm", 17, hidden_size=hidden)
        heads = torch.nn.Linear(hidden, 3 + 1)
    assert sum(p.numel() for module in (core, heads) for p in module.parameters()) == count


@BOTH
def test_state_starts_at_zero_in_float32(name):
    for leaf in make_core(name, SIZE, hidden_size=HIDDEN).initial_state(4):
        assert leaf.shape == (4, HIDDEN)
        assert leaf.dtype == torch.float32
        assert not leaf.any()


@BOTH
def test_the_compiled_route_has_only_first_derivatives(name, route):
    if route == "torch":
        pytest.skip("the library's loop says so in its own words")
    refuses_second_derivatives(small(name), SIZE)


@BOTH
def test_state_stays_float32_under_autocast(name):
    core = make_core(name, SIZE, hidden_size=HIDDEN)
    inputs, reset = random_inputs(SIZE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = unroll(core, inputs.float(), reset, core.initial_state(5))
        _, after = core(inputs[0].bfloat16(), state)
    assert {outputs.dtype, *(leaf.dtype for leaf in (*state, *after))} == {torch.float32}


def test_feedforward_forgets():
    core = make_core("feedforward", SIZE, hidden_size=HIDDEN)
    inputs = torch.randn(4, 2, SIZE)
    outputs, state = unroll(core, inputs, torch.zeros(4, 2, dtype=torch.bool), core.initial_state(2))
    assert state == ()
    weight, bias = core.hidden.weight, core.hidden.bias
    expected = [[(weight @ x + bias).clamp(min=0) for x in row] for row in inputs]
    torch.testing.assert_close(outputs, torch.stack([torch.stack(row) for row in expected]))
