"""ConvLSTM against its equations written place by place, and the images it takes its inputs for."""

import math

import pytest
import torch

from engram.agents.agent import Agent
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores import make_core
from engram.agents.cores.conv_lstm import ConvLSTM, image_size, neighborhoods
from engram.agents.specs import ArraySpec, ChoiceSpec
from engram.base import compiled
from unrolls import (
    check_gradients,
    compare_chunks,
    compare_with_loop,
    random_inputs,
    random_state,
    randomize,
)

HEIGHT, WIDTH, CHANNELS, EXTRA, HIDDEN = 3, 2, 2, 1, 2
SIZE = CHANNELS * HEIGHT * WIDTH + EXTRA


@pytest.fixture(
    autouse=True,
    params=[pytest.param(True, marks=pytest.mark.integration, id="compiled"), pytest.param(False, id="plain")],
)
def both_routes(request, monkeypatch):
    monkeypatch.setattr(compiled, "enabled", request.param)


def small(kernel_size=2):
    core = ConvLSTM(SIZE, HEIGHT, WIDTH, CHANNELS, hidden_channels=HIDDEN, kernel_size=kernel_size)
    return randomize(core)


def convolved(kernel, image, place, channel):
    """Sum over the neighborhood of `place` in image [row][column][plane]; zero outside."""
    size = len(kernel[0][0])
    before = (size - 1) // 2
    total = 0.0
    for i in range(size):
        for j in range(size):
            row, column = place[0] + i - before, place[1] + j - before
            if 0 <= row < HEIGHT and 0 <= column < WIDTH:
                planes = image[row][column]
                total += sum(kernel[channel][plane][i][j] * value for plane, value in enumerate(planes))
    return total


def slow_step(core, x, h, c):
    """The next h and c [places][channels] of one batch row."""
    input_kernel, input_bias = core.input_conv.weight.tolist(), core.input_conv.bias.tolist()
    state_kernel, state_bias = core.state_conv.weight.tolist(), core.state_conv.bias.tolist()
    places = [(row, column) for row in range(HEIGHT) for column in range(WIDTH)]
    image = [
        [[x[(p * HEIGHT + row) * WIDTH + column] for p in range(CHANNELS)] + x[-EXTRA:] for column in range(WIDTH)]
        for row in range(HEIGHT)
    ]
    state = [[h[row * WIDTH + column] for column in range(WIDTH)] for row in range(HEIGHT)]
    new_h, new_c = [], []
    for n, place in enumerate(places):
        new_h.append([])
        new_c.append([])
        for d in range(HIDDEN):
            i, f, g, o = (
                convolved(input_kernel, image, place, channel)
                + input_bias[channel]
                + convolved(state_kernel, state, place, channel)
                + state_bias[channel]
                for channel in (block * HIDDEN + d for block in range(4))
            )
            cell = c[n][d] / (1 + math.exp(-f - 1)) + math.tanh(g) / (1 + math.exp(-i))
            new_c[n].append(cell)
            new_h[n].append(math.tanh(cell) / (1 + math.exp(-o)))
    return new_h, new_c


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_steps_are_the_equations(kernel_size):
    core = small(kernel_size)
    inputs, _ = random_inputs(SIZE, steps=3, rows=2)
    state = random_state(core, rows=2)
    rows = list(zip(state.h.tolist(), state.c.tolist(), strict=True))
    for x in inputs:
        output, state = core(x, state)
        rows = [slow_step(core, features, *leaves) for features, leaves in zip(x.tolist(), rows, strict=True)]
        for leaf, expected in zip(state, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(leaf, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9)
        assert torch.equal(output, state.h.flatten(1))


@pytest.mark.integration
@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_gradients_are_those_of_finite_differences(kernel_size):
    check_gradients(small(kernel_size), SIZE)


@pytest.mark.parametrize("bptt_length", [None, 1, 3])
def test_unroll_is_the_loop_over_steps(bptt_length):
    compare_with_loop(small(), SIZE, bptt_length)


@pytest.mark.integration
def test_both_routes_agree_in_wide_batches(monkeypatch):
    """More environments than a group holds, in the numbers that training uses."""
    core = ConvLSTM(37, 5, 7, hidden_channels=3, kernel_size=2).float()
    inputs, reset = torch.randn(4, 50, 37), torch.rand(4, 50) < 0.2
    results = []
    for enabled in (True, False):
        monkeypatch.setattr(compiled, "enabled", enabled)
        outputs, state, _ = core.unroll(inputs, reset, core.initial_state(50), 3)
        (outputs.square().sum() + state.c.sum()).backward()
        results.append([outputs, *state, *(p.grad.clone() for p in core.parameters())])
        core.zero_grad()
        results.append([core(inputs[0], state)[0]])
    torch.testing.assert_close(results[0], results[2], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(results[1], results[3], atol=1e-5, rtol=1e-4)


def test_pieces_of_an_unroll_are_the_unroll():
    compare_chunks(small(), SIZE)


def test_boxworld_baseline_has_the_size_of_the_paper():
    core = make_core("conv-lstm", 650)
    assert sum(parameter.numel() for parameter in core.parameters()) == 92_672
    assert core.output_size == 5 * 5 * 64
    state = core.initial_state(3)
    assert {leaf.shape for leaf in state} == {(3, 25, 64)}
    assert not any(leaf.any() for leaf in state)


@pytest.mark.parametrize(
    ("size", "given", "expected"),
    [
        (650, (None, None, None), (26, 5, 5)),
        (234, (None, None, None), (26, 3, 3)),
        (26 * 6 * 4, (6, 4, None), (26, 6, 4)),
        (655, (5, 5, 26), (26, 5, 5)),
        (653, (5, 5, None), (26, 5, 5)),
    ],
)
def test_the_image_is_found_in_the_input(size, given, expected):
    assert image_size("conv-lstm", size, *given) == expected


@pytest.mark.parametrize(
    ("size", "given", "message"),
    [
        (26, (None, None, None), "no square image divides input_size 26"),
        (650, (5, None, None), "height and width together; got height=5, width=None"),
        (650, (None, None, 26), "height and width together"),
        (650, (5, 5, 27), "27 x 5 x 5 does not fit in input_size 650"),
        (20, (5, 5, None), "at least one x 5 x 5 does not fit in input_size 20"),
    ],
)
def test_an_image_that_cannot_be_is_named(size, given, message):
    with pytest.raises(ValueError, match=message):
        image_size("conv-lstm", size, *given)


def test_an_agent_gives_the_image_of_its_torso():
    """26 * 25 + 6 = 656 = 41 * 16: by the number alone the image would be 4 x 4, and 26 * 15 * 19 has no square."""
    for rows, cols, actions in ((5, 5, 6), (15, 19, 4)):
        config = AgentConfig(core="conv-lstm", core_args={"hidden_channels": 3}, previous_action=True)
        agent = Agent(ArraySpec((rows, cols, 6), 1 / 255), ChoiceSpec((actions,)), config)
        assert isinstance(agent.core, ConvLSTM)
        assert (agent.core.channels, agent.core.height, agent.core.width) == (26, rows, cols)
    given = AgentConfig(core="conv-lstm", core_args={"height": 3, "width": 2})
    assert Agent(ArraySpec((5, 5, 6), 1 / 255), ChoiceSpec((4,)), given).core.height == 3
    with_normal_features = AgentConfig(core="conv-lstm", torso=TorsoConfig(normalize_features=True))
    assert Agent(ArraySpec((5, 5, 6), 1 / 255), ChoiceSpec((4,)), with_normal_features).core.height == 5


def test_kernels_start_normal_cut_at_two_deviations():
    torch.manual_seed(0)
    core = make_core("conv-lstm", 650)
    for conv in (core.input_conv, core.state_conv):
        deviation = (conv.in_channels * 4) ** -0.5
        assert conv.weight.abs().max().item() <= 2 * deviation
        assert conv.weight.std().item() == pytest.approx(0.8796 * deviation, rel=0.02)
        assert not conv.bias.any()


def test_a_place_has_its_neighborhood_and_the_padding():
    assert neighborhoods(2, 2, 2).tolist() == [[0, 1, 2, 3], [1, -1, 3, -1], [2, 3, -1, -1], [3, -1, -1, -1]]
    assert neighborhoods(1, 2, 3).tolist() == [[-1, -1, -1, -1, 0, 1, -1, -1, -1], [-1, -1, -1, 0, 1, -1, -1, -1, -1]]
