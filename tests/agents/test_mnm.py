"""MNM-p and MNM-g against their equations written element by element."""

import math

import pytest
import torch

from engram.agents.cores import make_core, unroll
from engram.agents.cores.core import map_state
from engram.base import compiled
from unrolls import (
    check_gradients,
    compare_chunks,
    compare_with_loop,
    random_inputs,
    random_state,
    randomize,
)

SIZE, HIDDEN, D, HEADS = 5, 4, 3, 2
BOTH = pytest.mark.parametrize("name", ["mnm-p", "mnm-g"])
NORMS = pytest.mark.parametrize("layer_norm", [False, True])


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param("compiled", marks=pytest.mark.integration),
        pytest.param("torch", marks=pytest.mark.statement),
    ],
)
def route(request, monkeypatch):
    """The compiled loop, on a CPU, or torch's operations, for all else."""
    monkeypatch.setattr(compiled, "enabled", request.param == "compiled")
    return request.param


def small(name, layer_norm=False):
    sizes = {"hidden_size": HIDDEN, "memory_size": D, "num_heads": HEADS}
    return randomize(make_core(name, SIZE, **sizes, layer_norm=layer_norm))


def affine(layer, x):
    rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [b + sum(w * v for w, v in zip(row, x, strict=True)) for row, b in rows]


def recall(memory, key):
    """z^0 .. z^3 of section 3.2, no activation at the output."""
    layers = [key]
    for depth, matrix in enumerate(memory):
        z = [sum(matrix[i][j] * layers[-1][j] for j in range(D)) for i in range(D)]
        layers.append(z if depth == 2 else [math.tanh(x) for x in z])
    return layers


def squared_error(memory, keys, values):
    """(1/H) sum_i ||f(k_i) - v_i||^2 (equation 2)."""
    total = 0.0
    for key, value in zip(keys, values, strict=True):
        total += sum((f - v) ** 2 for f, v in zip(recall(memory, key)[-1], value, strict=True))
    return total / HEADS


def gradient_write(memory, beta, keys, values):
    """Equation 3: the partial derivative of equation 2 for each element of the memory, by five-point differences."""
    step = 1e-3

    def error_at(place, i, j, shift):
        moved = [[row[:] for row in matrix] for matrix in memory]
        moved[place][i][j] += shift
        return squared_error(moved, keys, values)

    new = [[row[:] for row in matrix] for matrix in memory]
    for place in range(3):
        for i in range(D):
            for j in range(D):
                near, far = (error_at(place, i, j, n * step) - error_at(place, i, j, -n * step) for n in (1, 2))
                new[place][i][j] -= beta * (8 * near - far) / (12 * step)
    return new


def local_write(core, memory, rate, keys, values):
    """Equation 4, summed over the heads."""
    new = [[row[:] for row in matrix] for matrix in memory]
    for key, value in zip(keys, values, strict=True):
        layers, targets = recall(memory, key), affine(core.targets, value)
        for place in range(3):
            for i in range(D):
                for j in range(D):
                    new[place][i][j] -= rate * (layers[place + 1][i] - targets[place * D + i]) * layers[place][j]
    return new


def slow_step(name, core, hidden, memory):
    """Everything behind the LSTM for one row -> output, read, memory, meta error."""
    vectors = affine(core.interaction, hidden)
    if core.norm is None:
        vectors = [math.tanh(x) for x in vectors]
    else:
        mean = sum(vectors) / len(vectors)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in vectors) / len(vectors) + 1e-5)
        gains = zip(vectors, core.norm.weight.tolist(), core.norm.bias.tolist(), strict=True)
        vectors = [g * (x - mean) / deviation + b for x, g, b in gains]
    vectors = [vectors[n * D : (n + 1) * D] for n in range(3 * HEADS + 1)]
    beta = 1 / (1 + math.exp(-affine(core.rate, vectors[0])[0]))
    write_keys, values, read_keys = (vectors[1 + part :: 3] for part in range(3))
    if name == "mnm-p":
        memory = local_write(core, memory, beta * 2 / (HEADS * D), write_keys, values)  # the released factor
    else:
        memory = gradient_write(memory, beta / D, write_keys, values)
    found = [recall(memory, key)[-1] for key in read_keys]
    read = [sum(row[i] for row in found) / HEADS for i in range(D)]
    error = squared_error(memory, write_keys, values) / D
    return affine(core.out, [*hidden, *read]), read, memory, error


@BOTH
@NORMS
def test_steps_are_the_equations(name, layer_norm):
    core = small(name, layer_norm)
    inputs, _ = random_inputs(SIZE, steps=3)
    state = random_state(core)
    memories = [[m.tolist() for m in row] for row in zip(*state.memory, strict=True)]
    for x in inputs:
        hidden, _ = core.controller(torch.cat([x, state.read], 1), state.controller)
        output, state = core(x, state)
        rows = zip(hidden.tolist(), memories, strict=True)
        slow = [slow_step(name, core, h, m) for h, m in rows]
        outputs, reads, memories, errors = map(list, zip(*slow, strict=True))
        memory = torch.stack(list(state.memory), 1)
        for ours, wanted in ((output, outputs), (state.read, reads), (memory, memories), (state.meta_error, errors)):
            torch.testing.assert_close(ours, torch.tensor(wanted, dtype=torch.float64), atol=1e-9, rtol=1e-9)


CARRIED = pytest.mark.parametrize("carried", [{"momentum": True}, {"decay": True}, {"momentum": True, "decay": True}])


def carrying(carried):
    sizes = {"hidden_size": HIDDEN, "memory_size": D, "num_heads": HEADS}
    return randomize(make_core("mnm-g", SIZE, **sizes, **carried))


@CARRIED
def test_momentum_and_decay_are_those_of_titans(carried):
    """S_t = eta S_{t-1} + W_t, M_t = (1 - alpha) M_{t-1} + S_t, element by element."""
    core = carrying(carried)
    inputs, _ = random_inputs(SIZE, steps=3)
    state = random_state(core)
    for x in inputs:
        hidden, _ = core.controller(torch.cat([x, state.read], 1), state.controller)
        _, after = core(x, state)
        for b, h in enumerate(hidden.tolist()):
            memory = [m[b].tolist() for m in state.memory]
            past = [m[b].tolist() for m in state.momentum] if core.momentum else None
            _, _, written, _ = slow_step("mnm-g", core, h, memory)
            gates = [1 / (1 + math.exp(-each)) for each in affine(core.carry, h)]
            eta, alpha = gates[0] if core.momentum else 0.0, gates[-1] if core.decay else 0.0
            for place in range(3):
                for i in range(D):
                    for j in range(D):
                        old = memory[place][i][j]
                        step = written[place][i][j] - old + (eta * past[place][i][j] if past else 0.0)
                        assert after.memory[place][b, i, j].item() == pytest.approx((1 - alpha) * old + step, abs=1e-9)
                        if past:
                            assert after.momentum[place][b, i, j].item() == pytest.approx(step, abs=1e-9)
            kept = [m[b].tolist() for m in after.memory]
            vectors = [math.tanh(v) for v in affine(core.interaction, h)]
            keys = [vectors[n * D : (n + 1) * D] for n in range(3, 3 * HEADS + 1, 3)]
            read = [sum(recall(kept, key)[-1][i] for key in keys) / HEADS for i in range(D)]
            assert after.read[b].tolist() == pytest.approx(read, abs=1e-9)
        state = after


@pytest.mark.integration
@CARRIED
def test_gradients_pass_through_momentum_and_decay(carried):
    check_gradients(carrying(carried), SIZE)
    compare_with_loop(carrying(carried), SIZE, 3, tolerance=1e-9)


def test_a_step_without_momentum_and_decay_is_mnm_g_itself():
    core = carrying({"momentum": True, "decay": True})
    plain = small("mnm-g")
    plain.load_state_dict({k: v for k, v in core.state_dict().items() if not k.startswith("carry")})
    with torch.no_grad():
        core.carry.weight.zero_()
        core.carry.bias.fill_(-1e3)
    inputs, reset = random_inputs(SIZE)
    ours, _, _ = core.unroll(inputs, reset, core.initial_state(inputs.shape[1]))
    theirs, _, _ = plain.unroll(inputs, reset, plain.initial_state(inputs.shape[1]))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@BOTH
@NORMS
def test_gradients_are_those_of_finite_differences(name, layer_norm):
    """Through the writes, MNM-g's gradient step included, and of the meta error."""
    check_gradients(small(name, layer_norm), SIZE)


def test_write_of_mnm_g_is_autograds_partial_derivative():
    """With respect to an alias of the memory: k_w and v_w depend on the memory too, through the previous read."""
    core = small("mnm-g")
    inputs, _ = random_inputs(SIZE, steps=2)
    _, state = core(inputs[0], random_state(core))
    alias = map_state(lambda leaf: leaf.detach().requires_grad_(), state.memory)
    hidden, _ = core.controller(torch.cat([inputs[1], state.read], 1), state.controller)
    vectors = core.interaction(hidden).tanh().unflatten(1, (3 * HEADS + 1, D))
    key, value = vectors[:, 1::3], vectors[:, 2::3]
    recalled = torch.tanh(torch.tanh(key @ alias.m1.mT) @ alias.m2.mT) @ alias.m3.mT
    gradients = torch.autograd.grad((recalled - value).square().sum() / (HEADS * D), [*alias])
    beta = torch.sigmoid(core.rate(vectors[:, 0])).unsqueeze(2)
    _, after = core(inputs[1], state)
    for old, gradient, new in zip(state.memory, gradients, after.memory, strict=True):
        torch.testing.assert_close(new, old - beta * gradient)


@BOTH
@NORMS
@pytest.mark.parametrize("bptt_length", [None, 1, 3])
def test_unroll_is_the_loop_over_steps(name, layer_norm, bptt_length):
    compare_with_loop(small(name, layer_norm=layer_norm), SIZE, bptt_length, tolerance=1e-9)


@BOTH
@NORMS
def test_pieces_of_an_unroll_are_the_unroll(name, layer_norm):
    compare_chunks(small(name, layer_norm=layer_norm), SIZE, tolerance=1e-9)


@BOTH
def test_unroll_returns_the_meta_error_of_every_step(name):
    core = small(name)
    inputs, reset = random_inputs(SIZE)
    _, last, losses = core.unroll(inputs, reset, core.initial_state(inputs.shape[1]))
    assert losses.shape == reset.shape
    assert torch.equal(losses[-1], core.auxiliary_loss(last))
    assert (losses > 0).all()


@BOTH
def test_meta_loss_trains_keys_and_values(name):
    """The values written are not taken as constants: the meta loss alone reaches everything but the output layer."""
    core = small(name)
    inputs, reset = random_inputs(SIZE)
    _, _, losses = core.unroll(inputs, reset, core.initial_state(inputs.shape[1]))
    losses.mean().backward()
    idle = {key for key, p in core.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {"out.weight", "out.bias"}


@pytest.mark.integration
@BOTH
def test_meta_loss_teaches_to_store(name):
    torch.manual_seed(0)
    core = make_core(name, SIZE, hidden_size=16, memory_size=8, num_heads=1)
    optimizer = torch.optim.Adam(core.parameters(), 1e-2)
    inputs, reset = torch.randn(10, 16, SIZE), torch.zeros(10, 16, dtype=torch.bool)
    errors = []
    for _ in range(60):
        loss = core.unroll(inputs, reset, core.initial_state(16))[2].mean()
        errors.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert errors[-1] < 0.3 * errors[0]


def test_the_seed_decides_the_first_memory_and_it_travels_with_the_weights():
    def made(seed):
        torch.manual_seed(seed)
        return make_core("mnm-p", SIZE, hidden_size=HIDDEN, memory_size=D)

    one, same, other = made(1), made(1), made(2)
    assert torch.equal(one.initial_memory, same.initial_memory)
    assert not torch.equal(one.initial_memory, other.initial_memory)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.initial_state(2).memory.m2, other.initial_state(2).memory.m2)
    assert "initial_memory" not in dict(one.named_parameters())


@pytest.mark.parametrize(("inputs", "count"), [(11, 542_001), (17, 546_801)])
def test_parameter_counts_of_the_maze_agent(inputs, count):
    """MNM-p, hidden 200, memory 100, 3 heads; with four actions and a value 17 inputs make 547,806."""
    core = make_core("mnm-p", inputs, hidden_size=200, memory_size=100, num_heads=3)
    assert sum(p.numel() for p in core.parameters()) == count
    heads = sum(p.numel() for p in torch.nn.Linear(200, 4 + 1).parameters())
    assert count + heads == {11: 543_006, 17: 547_806}[inputs]


def test_fast_state_of_the_babi_model():
    """Hidden 256, memory 100: 30.5k values, read and meta error excluded, as the FWM paper's table 1 prints."""
    state = make_core("mnm-p", 256, hidden_size=256).initial_state(1)
    assert sum(leaf.numel() for leaf in (*state.controller, *state.memory)) == 3 * 100**2 + 2 * 256


@pytest.mark.integration
@BOTH
def test_ten_thousand_steps_stay_finite(name):
    """With saturated keys and values and a write rate of 1."""
    torch.manual_seed(0)
    core = make_core(name, SIZE, hidden_size=8, memory_size=6, num_heads=2)
    with torch.no_grad():
        core.interaction.weight.mul_(20)
        core.rate.bias.fill_(10)
        state = core.initial_state(2)
        for _ in range(100):
            outputs, state = unroll(core, 5 * torch.randn(100, 2, SIZE), torch.zeros(100, 2, dtype=torch.bool), state)
            assert outputs.isfinite().all()


def test_impossible_options_are_named():
    with pytest.raises(ValueError, match="num_heads is 0; allowed"):
        make_core("mnm-g", SIZE, num_heads=0)
