"""AGaLiTe against its equations, trace by trace."""

import math

import torch

from engram.agents.cores.linear.agalite import AGaLiTe
from unrolls import random_inputs, randomize

SIZE, HIDDEN, HEADS, HEAD, MLP, ETA, R = 3, 6, 2, 3, 5, 2, 3


def layer_norm(layer, x):
    centered = x - x.mean()
    return centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias


def gate(unit, x, y):
    W, U, G = unit.from_y.weight, unit.from_x.weight, unit.from_gated_x.weight
    r = torch.sigmoid(W[:HIDDEN] @ y + U[:HIDDEN] @ x)
    z = torch.sigmoid(W[HIDDEN : 2 * HIDDEN] @ y + U[HIDDEN:] @ x - unit.bias)
    return (1 - z) * x + z * torch.tanh(W[2 * HIDDEN :] @ y + G @ (r * x))


def slow_layer(layer, x, traces, time):
    """Sections 3.1 and 3.2 for one sequence; `traces` of each head: V [R, HEAD], K [R, ETA HEAD], s [ETA HEAD]."""
    u = layer_norm(layer.norm_1, x)
    maps = (layer.maps.weight @ u + layer.maps.bias).reshape(5, HEADS, HEAD)
    features = (layer.features.weight @ u + layer.features.bias).reshape(3, HEADS, ETA)
    attended = []
    for head in range(HEADS):
        k, q, v, b, g = maps[:, head]
        first, second, third = features[:, head]
        k, q = torch.outer(first.relu(), k.relu()).flatten(), torch.outer(second.relu(), q.relu()).flatten()
        g, b = torch.outer(torch.sigmoid(third), torch.sigmoid(g)).flatten(), torch.sigmoid(b)
        V, K, s = traces[head]
        for i in range(R):
            wave = math.cos((-math.pi + 2 * math.pi * i / (R - 1)) * time)
            V[i] = (1 - b) * V[i] + wave * b * v
            K[i] = (1 - g) * K[i] + wave * g * k
        s[:] = (1 - g) * s + g * k
        total = sum(V[i] * (K[i] @ q) for i in range(R))
        attended.append(total / (2 * R * (s @ q) + 1e-5))
    y = gate(layer.gate_1, x, (layer.out.weight @ torch.cat(attended) + layer.out.bias).relu())
    return gate(layer.gate_2, y, layer.mlp(layer_norm(layer.norm_2, y)).relu())


def empty():
    return [torch.zeros(shape, dtype=torch.float64) for shape in ((R, HEAD), (R, ETA * HEAD), (ETA * HEAD,))]


def test_steps_are_the_equations_also_behind_a_reset():
    core = randomize(AGaLiTe(SIZE, HIDDEN, 2, HEADS, HEAD, MLP, ETA, R))
    inputs, _ = random_inputs(SIZE, steps=6, rows=1)
    reset = torch.tensor([False, False, False, True, False, False]).unsqueeze(1)
    outputs, _, _ = core.unroll(inputs, reset, core.initial_state(1))
    with torch.no_grad():
        for t, x in enumerate(inputs[:, 0]):
            if t in (0, 3):
                time, traces = 2, [[empty() for _ in range(HEADS)] for _ in core.layers]
            y = (core.encoder.weight @ x + core.encoder.bias).relu()
            for layer, held in zip(core.layers, traces, strict=True):
                y = slow_layer(layer, y, held, time)
            torch.testing.assert_close(outputs[t, 0], y)
            time += 1
