"""sLSTM and the small controls against their equations, and their sizes."""

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.simple import MGU, SLSTM, Elman, FrameStack, IndRNN
from unrolls import compare_with_loop, random_inputs, random_state, randomize

SIZE, HIDDEN = 3, 6


def affine(layer, x):
    return layer.weight @ x + layer.bias


def slow_slstm(core, x, state):
    """Equations 8 to 17 without a stabilizer: c and n are exp(m) times what the core holds."""
    c, n, h, m = state
    size = HIDDEN // core.num_heads
    own = torch.zeros(4, HIDDEN, dtype=torch.float64)
    for head in range(core.num_heads):
        part = slice(head * size, (head + 1) * size)
        own[:, part] = (h[part] @ core.recurrent[head]).reshape(4, size)
    cell, new, forget, out = affine(core.from_input, x).reshape(4, HIDDEN) + own
    maximum = torch.maximum(torch.sigmoid(forget).log() + m, new)
    c = torch.sigmoid(forget) * c * m.exp() + new.exp() * torch.tanh(cell)
    n = torch.sigmoid(forget) * n * m.exp() + new.exp()
    h = torch.sigmoid(out) * c / n
    return h, (c / maximum.exp(), n / maximum.exp(), h, maximum)


def slow_elman(core, x, state):
    h = torch.tanh(affine(core.from_input, x) + core.recurrent @ state[0])
    return h, (h,)


def slow_mgu(core, x, state):
    (h,) = state
    x_f, x_n = affine(core.from_input, x).reshape(2, HIDDEN)
    f = torch.sigmoid(x_f + core.forget.weight @ h)
    h = (1 - f) * h + f * torch.tanh(x_n + core.candidate.weight @ (f * h))
    return h, (h,)


def slow_ind_rnn(core, x, state):
    new = []
    for layer, weights, h in zip(core.layers, core.recurrent, state[0], strict=True):
        x = (affine(layer, x) + weights.clamp(-1, 1) * h).relu()
        new.append(x)
    return x, (torch.stack(new),)


def slow_frame_stack(core, x, state):
    frames = [x, *state[0]]
    return affine(core.layer, torch.cat(frames)).relu(), (torch.stack(frames[:-1]),)


CASES = [
    (SLSTM(SIZE, HIDDEN, 2), slow_slstm),
    (Elman(SIZE, HIDDEN), slow_elman),
    (MGU(SIZE, HIDDEN), slow_mgu),
    (IndRNN(SIZE, HIDDEN, 3), slow_ind_rnn),
    (FrameStack(SIZE, HIDDEN, 3), slow_frame_stack),
]
cases = pytest.mark.parametrize(("core", "slow"), CASES, ids=[type(core).__name__ for core, _ in CASES])


@cases
def test_steps_are_the_equations(core, slow):
    core = randomize(core)
    inputs, _ = random_inputs(SIZE, steps=4)
    state = random_state(core)
    rows = [tuple(leaf[row] for leaf in state) for row in range(len(inputs[0]))]
    for now in inputs:
        output, state = core(now, state)
        done = [slow(core, x, held) for x, held in zip(now, rows, strict=True)]
        rows = [held for _, held in done]
        torch.testing.assert_close(output, torch.stack([one for one, _ in done]))
        for place, leaf in enumerate(state):
            torch.testing.assert_close(leaf, torch.stack([held[place] for held in rows]))


@cases
@pytest.mark.parametrize("bptt_length", [None, 3])
def test_unrolls_are_the_loop(core, slow, bptt_length):
    compare_with_loop(randomize(core), SIZE, bptt_length, tolerance=1e-8)


def test_the_first_step_of_slstm_is_its_input_whatever_its_gate():
    core = make_core("slstm", SIZE, hidden_size=HIDDEN, num_heads=2)
    with torch.no_grad():
        core.from_input.bias[HIDDEN : 2 * HIDDEN] = -100.0  # the input gate: exp(-100) is 0 next to 1
    output, state = core(torch.randn(2, SIZE), core.initial_state(2))
    torch.testing.assert_close(state.n, torch.ones(2, HIDDEN))
    assert output.abs().min() > 0


def test_heads_must_divide_the_units_of_slstm():
    with pytest.raises(ValueError, match="num_heads is 4; allowed: divisors of hidden_size 6"):
        make_core("slstm", SIZE, hidden_size=6, num_heads=4)


SIZES = {
    "agalite": 343_984,
    "delta-net": 91_040,
    "elman": 82_176,
    "frame-stack": 65_792,
    "ind-rnn": 82_944,
    "mamba2": 113_196,
    "mgu": 512 * (64 + 1) + 2 * 256 * 256,
    "mlstm": 91_656,
    "rtu": 24_832,
    "s5": 58_176,
    "shm": 37_504,
    "slstm": 49_664,
}


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters(name):
    assert sum(p.numel() for p in make_core(name, 64).parameters()) == SIZES[name]


def test_a_weight_beyond_its_bound_keeps_learning() -> None:
    core = IndRNN(SIZE, HIDDEN, 1)
    inputs, state = torch.ones(3, SIZE), core.initial_state(3)._replace(h=torch.ones(3, 1, HIDDEN))
    with torch.no_grad():
        core.layers[0].weight.zero_()
        core.layers[0].bias.fill_(1.0)
        core.recurrent.fill_(1.1)
    output, _ = core(inputs, state)
    torch.testing.assert_close(output, torch.full_like(output, 2.0))
    (gradient,) = torch.autograd.grad(output.sum(), core.recurrent)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 3.0))
    (outward,) = torch.autograd.grad(-core(inputs, state)[0].sum(), core.recurrent)
    assert not outward.any()
