"""minGRU against its equations written number by number, and its size."""

import math

import pytest
import torch

from engram.agents.cores import make_core
from engram.agents.cores.linear.elementwise import MinGRU
from unrolls import random_inputs, random_state, randomize

SIZE, HIDDEN = 3, 4


def slow_layer(layer, x, h):
    """Section 3.1.2 for one sequence."""
    rows = [
        b + sum(w * v for w, v in zip(row, x, strict=True))
        for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]
    new = []
    for unit in range(HIDDEN):
        z, n = 1 / (1 + math.exp(-rows[unit])), rows[HIDDEN + unit]
        new.append((1 - z) * h[unit] + z * n)
    return new


@pytest.mark.parametrize("layers", [1, 3])
def test_steps_are_the_equations(layers):
    core = randomize(MinGRU(SIZE, HIDDEN, layers))
    inputs, _ = random_inputs(SIZE, steps=3)
    state = random_state(core)
    held = state.h.tolist()
    for x in inputs:
        output, state = core(x, state)
        for row, values in enumerate(x.tolist()):
            for number, layer in enumerate(core.layers):
                values = held[row][number] = slow_layer(layer, values, held[row][number])
        torch.testing.assert_close(state.h, torch.tensor(held, dtype=torch.float64))
        torch.testing.assert_close(output, state.h[:, -1])


def test_number_of_parameters():
    core = make_core("min-gru", 64)
    assert sum(p.numel() for p in core.parameters()) == 512 * (64 + 1) + 512 * (256 + 1) == 164_864


def test_memory_span_spreads_what_is_kept():
    torch.manual_seed(0)
    core = make_core("min-gru", SIZE, memory_span=100)
    for layer in core.layers:
        spans = 1 + torch.exp(-layer.bias[:256])  # 1 / z = 1 + e^-b
        assert 2 <= spans.min() < 5
        assert 95 < spans.max() <= 100
    with pytest.raises(ValueError, match="memory_span is 2; allowed: 0"):
        make_core("min-gru", SIZE, memory_span=2)
