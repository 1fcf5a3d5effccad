"""Stacks of residual layers (agents/cores/linear/stack.py), one sequence and one step at a time."""

import torch

from unrolls import random_inputs

SIZE = 3


def layer_norm(x, weight=1.0, bias=0.0):
    centered = x - x.mean()
    return centered / (centered.square().mean() + 1e-5).sqrt() * weight + bias


def through_layers(core, x, states, slow_layer):
    """linear/stack.py for one sequence: x [SIZE] and the states of its layers, which are replaced."""
    x = core.encoder.weight @ x + core.encoder.bias
    for number, (norm, mixer) in enumerate(zip(core.norms, core.mixers, strict=True)):
        added, states[number] = slow_layer(mixer, layer_norm(x, norm.weight, norm.bias), states[number])
        x = x + added
    return x


def check_steps(core, state, slow_layer, steps=3):
    """Outputs and leaves of some steps against `slow_layer(mixer, u, leaves of its state) -> added, new leaves`."""
    inputs, _ = random_inputs(SIZE, steps=steps)
    rows = [
        [[leaf[row, number] for leaf in state] for number in range(len(core.mixers))] for row in range(len(inputs[0]))
    ]
    for now in inputs:
        output, state = core(now, state)
        slow = torch.stack([through_layers(core, x, held, slow_layer) for x, held in zip(now, rows, strict=True)])
        torch.testing.assert_close(output, slow)
        for place, leaf in enumerate(state):
            held = torch.stack([torch.stack([layer[place] for layer in row]) for row in rows])
            torch.testing.assert_close(leaf, held)
