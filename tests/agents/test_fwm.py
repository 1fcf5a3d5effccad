"""FWM against its equations written element by element; its unroll in blocks against its steps."""

import math

import pytest
import torch

from engram.agents.cores import make_core, unroll
from unrolls import check_gradients, compare_chunks, compare_with_loop, random_inputs, random_state, randomize

SIZE, HIDDEN, D, READS = 5, 4, 3, 2

VARIANTS = [
    {},
    {"write_scale": 1 / 16, "beta_bias": 1.0},
]


def small(scale=0.4, **options):
    return randomize(make_core("fwm", SIZE, hidden_size=HIDDEN, memory_size=D, num_reads=READS, **options), scale)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def affine(layer, x):
    return [
        b + sum(w * v for w, v in zip(row, x, strict=True))
        for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def layer_norm(x):
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(variance + 1e-5) for v in x]


def retrieve(memory, first, second):
    """F vec(first (x) second), element by element."""
    return [sum(first[i] * second[j] * memory[i][j][k] for i in range(D) for j in range(D)) for k in range(D)]


def slow_step(core, hidden, memory, write_scale=1.0, beta_bias=0.0):
    """Equations 1 to 8 for one row: hidden [HIDDEN], memory [D][D][D] -> output, memory."""
    *written, beta = affine(core.write, hidden)
    k1, k2, v = ([math.tanh(x) for x in written[n * D : (n + 1) * D]] for n in range(3))
    beta = write_scale * sigmoid(beta + beta_bias)
    old = retrieve(memory, k1, k2)
    memory = [
        [[memory[i][j][k] + beta * k1[i] * k2[j] * (v[k] - old[k]) for k in range(D)] for j in range(D)]
        for i in range(D)
    ]
    norm = math.sqrt(sum(x * x for matrix in memory for row in matrix for x in row))
    memory = [[[x / max(1.0, norm) for x in row] for row in matrix] for matrix in memory]
    n, *hops = (affine(core.read, hidden)[i * D : (i + 1) * D] for i in range(1 + READS))
    n = [math.tanh(x) for x in n]
    for e in hops:
        n = layer_norm(retrieve(memory, n, [math.tanh(x) for x in e]))
    output = [h + o for h, o in zip(hidden, affine(core.out, n), strict=True)]
    return output, memory


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("scale", [0.4, 2.0])
def test_steps_are_the_equations(options, scale):
    core = small(scale, **options)
    inputs, _ = random_inputs(SIZE, steps=4)
    state = random_state(core)
    memories = state.memory.tolist()
    for x in inputs:
        hidden, _ = core.controller(x, state.controller)
        output, state = core(x, state)
        outputs, memories = zip(
            *(slow_step(core, h, m, **options) for h, m in zip(hidden.tolist(), memories, strict=True)), strict=True
        )
        for ours, slow in ((output, outputs), (state.memory, memories)):
            torch.testing.assert_close(ours, torch.tensor(slow, dtype=torch.float64), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("scale", [0.4, 2.0])
def test_gradients_are_those_of_finite_differences(options, scale):
    check_gradients(small(scale, **options), SIZE)


@pytest.mark.parametrize("scale", [0.4, 2.0])
@pytest.mark.parametrize(
    ("steps", "density", "bptt_length"), [(70, 0.05, None), (70, 0.0, 20), (20, 0.3, 3), (5, 1, 1)]
)
def test_blocks_are_steps(scale, steps, density, bptt_length):
    """Over several blocks, with weak writes and with writes that are scaled down all the time."""
    compare_with_loop(small(scale), SIZE, bptt_length, tolerance=1e-8, steps=steps, density=density)


def test_pieces_of_an_unroll_are_the_unroll():
    compare_chunks(small(), SIZE, tolerance=1e-9)


def test_strong_writes_are_scaled_to_norm_one():
    core = small(scale=3.0)
    inputs, _ = random_inputs(SIZE, steps=40)
    no_reset = torch.zeros(40, inputs.shape[1], dtype=torch.bool)
    _, state = unroll(core, inputs, no_reset, core.initial_state(inputs.shape[1]))
    torch.testing.assert_close(state.memory.flatten(1).norm(dim=1), torch.ones(inputs.shape[1], dtype=torch.float64))


def test_a_full_write_is_read_back():
    """With beta = 1 and unit keys the retrieved value is the one written last, whatever was there (theorem B.1)."""
    from engram.agents.cores import fwm

    torch.manual_seed(0)
    key1, key2 = (torch.nn.functional.normalize(torch.randn(2, 4, dtype=torch.float64)) for _ in range(2))
    values = [0.3 * torch.nn.functional.normalize(torch.randn(2, 4, dtype=torch.float64)) for _ in range(2)]
    memory = torch.zeros(2, 4, 4, 4, dtype=torch.float64)
    for value in values:
        memory = fwm.write(memory, fwm.Write(key1, key2, value, torch.ones(2, 1)))
    found = torch.einsum("bi,bj,bijk->bk", key1, key2, memory)
    torch.testing.assert_close(found, values[-1])


def test_parameter_count_of_the_released_agent():
    """17 inputs, hidden 32, memory 16, three actions and a value."""
    core = make_core("fwm", 17, hidden_size=32, memory_size=16)
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in core.named_children()}
    assert count == {"controller": 6_528, "write": 1_617, "read": 2_112, "out": 544}
    heads = sum(p.numel() for size in (3, 1) for p in torch.nn.Linear(32, size).parameters())
    assert heads == 99 + 33
    assert sum(count.values()) + heads == 10_933


def test_state_of_the_catbabi_model():
    """Hidden 256, memory 32: 33,280 numbers (33.3k in the paper's table 1)."""
    state = make_core("fwm", 256, hidden_size=256, memory_size=32).initial_state(1)
    assert state.controller.h.numel() + state.controller.c.numel() + state.memory.numel() == 33_280


@pytest.mark.integration
def test_ten_thousand_steps_stay_finite():
    torch.manual_seed(0)
    core = make_core("fwm", SIZE, hidden_size=8, memory_size=4)
    with torch.no_grad():
        core.write.weight.mul_(20)
    state = core.initial_state(2)
    with torch.no_grad():
        for _ in range(10):
            outputs, state = unroll(core, 5 * torch.randn(1000, 2, SIZE), torch.zeros(1000, 2, dtype=torch.bool), state)
            assert outputs.isfinite().all()
    assert state.memory.flatten(1).norm(dim=1).max() <= 1 + 1e-5
