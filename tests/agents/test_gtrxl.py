"""GTrXL against its equations written position by position, its window and its size."""

import math

import pytest
import torch

from engram.agents.cores import make_core, unroll
from engram.agents.cores.core import unroll_step_by_step
from engram.agents.cores.gtrxl import GTrXL
from unrolls import random_inputs, randomize

SIZE, HIDDEN, LAYERS, HEADS, HEAD, MLP, WINDOW = 3, 6, 2, 2, 4, 5, 3


def small():
    return randomize(GTrXL(SIZE, HIDDEN, LAYERS, HEADS, HEAD, MLP, WINDOW))


def layer_norm(layer, x):
    centered = x - x.mean()
    return centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias


def gate(unit, x, y):
    """Section 3.2, GRU-type gating."""
    W, U, G = unit.from_y.weight, unit.from_x.weight, unit.from_gated_x.weight
    r = torch.sigmoid(W[:HIDDEN] @ y + U[:HIDDEN] @ x)
    z = torch.sigmoid(W[HIDDEN : 2 * HIDDEN] @ y + U[HIDDEN:] @ x - unit.bias)
    h = torch.tanh(W[2 * HIDDEN :] @ y + G @ (r * x))
    return (1 - z) * x + z * h


def sinusoid(k):
    rates = [10000 ** (-2 * i / HIDDEN) for i in range(HIDDEN // 2)]
    return torch.tensor([math.sin(k * w) for w in rates] + [math.cos(k * w) for w in rates], dtype=torch.float64)


def slow_layer(layer, past, x):
    """One position: `past` holds the layer's inputs before x, oldest first."""
    window = [*past, x]
    normed = [layer_norm(layer.norm_1, e) for e in window]
    mixed = []
    for head in range(HEADS):
        part = slice(head * HEAD, (head + 1) * HEAD)
        K, V = layer.key_value.weight[: HEADS * HEAD][part], layer.key_value.weight[HEADS * HEAD :][part]
        q = layer.query.weight[part] @ normed[-1]
        scores = []
        for place, e in enumerate(normed):
            r = layer.position.weight[part] @ sinusoid(len(window) - 1 - place)
            scores.append(((q + layer.u[head]) @ (K @ e) + (q + layer.v[head]) @ r) / math.sqrt(HEAD))
        weights = torch.stack(scores).softmax(0)
        mixed.append(sum(w * (V @ e) for w, e in zip(weights, normed, strict=True)))
    y = gate(layer.gate_1, x, (layer.out.weight @ torch.cat(mixed)).relu())
    return gate(layer.gate_2, y, layer.mlp(layer_norm(layer.norm_2, y)).relu())


def slow_outputs(core, inputs, reset):
    """inputs [T, SIZE], reset [T] of one sequence -> outputs [T, HIDDEN], windows of all layers."""
    pasts = [[] for _ in core.layers]
    outputs = []
    for x, starts in zip(inputs, reset, strict=True):
        pasts = [[] for _ in core.layers] if starts else pasts
        e = core.encoder.weight @ x + core.encoder.bias
        for number, layer in enumerate(core.layers):
            out = slow_layer(layer, pasts[number], e)
            pasts[number] = [*pasts[number], e][-WINDOW:]
            e = out
        outputs.append(e)
    return torch.stack(outputs), pasts


@pytest.mark.parametrize("way", [unroll, lambda *a: unroll_step_by_step(*a)[:2]], ids=["unroll", "steps"])
def test_outputs_are_the_equations(way):
    core = small()
    inputs, _ = random_inputs(SIZE, steps=10, rows=3)
    reset = torch.zeros(10, 3, dtype=torch.bool)
    reset[4, 1] = reset[0, 2] = reset[9, 2] = True
    with torch.no_grad():
        outputs, state = way(core, inputs, reset, core.initial_state(3))
        for row in range(3):
            slow, pasts = slow_outputs(core, inputs[:, row], reset[:, row].tolist())
            torch.testing.assert_close(outputs[:, row], slow)
            held = len(pasts[0])
            assert state.length[row] == held
            for number, past in enumerate(pasts):
                torch.testing.assert_close(state.past[row, number, WINDOW - held :], torch.stack(past))
            assert not state.past[row, :, : WINDOW - held].any()


def test_nothing_older_than_the_window_is_seen():
    """Each layer reaches WINDOW steps back, so the output reaches LAYERS times as far and no further."""
    core = small()
    inputs = torch.randn(20, 1, SIZE, dtype=torch.float64, requires_grad=True)
    outputs, _ = unroll(core, inputs, torch.zeros(20, 1, dtype=torch.bool), core.initial_state(1))
    (grad,) = torch.autograd.grad(outputs[-1].sum(), inputs)
    reached = grad.abs().sum((1, 2)) > 0
    assert reached.tolist() == [t >= 19 - LAYERS * WINDOW for t in range(20)]


def test_gates_begin_near_the_identity():
    torch.manual_seed(0)
    core = make_core("gtrxl", SIZE)
    x = torch.randn(100, 128)
    kept = core.layers[0].gate_1(x, torch.randn(100, 128)) - x
    assert kept.abs().mean() < 0.35 * x.abs().mean()


def test_number_of_parameters():
    """Encoder; per layer: two norms, q, k and v, r, u, v, out, the MLP, two gates of six matrices and b_g."""
    core = make_core("gtrxl", 64)
    layer = 4 * 128 + 5 * 128 * 128 + 2 * 128 + (129 * 256 + 257 * 128) + 2 * (6 * 128 * 128 + 128)
    assert sum(p.numel() for p in core.parameters()) == 65 * 128 + 2 * layer == 699_264
