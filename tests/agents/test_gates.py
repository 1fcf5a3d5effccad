"""Gates that remember from the start: biases, the cores that take them, and what becomes of a state."""

import math

import pytest
import torch

from engram.agents.cores import make_core, unroll
from engram.agents.cores.gru import gate_biases

SPAN = 100


def test_biases_give_spans_from_two_steps_to_the_longest():
    """A unit that keeps sigmoid(b) per step forgets over 1 / (1 - sigmoid(b)) = 1 + e^b steps."""
    torch.manual_seed(0)
    spans = 1 + gate_biases(10_000, SPAN).double().exp()
    assert 2 <= spans.min() < 2.2
    assert SPAN - 0.2 < spans.max() <= SPAN + 1e-4
    assert spans.mean() == pytest.approx((2 + SPAN) / 2, rel=0.02)


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3)])
def test_only_the_gate_that_forgets_is_biased(name, gates):
    """The second: f of LSTM, z of GRU. The others have the sum of two of torch's own biases."""
    torch.manual_seed(0)
    cell = make_core(name, 4, hidden_size=50, memory_span=SPAN).cell
    first, forget, *rest = (cell.bias_ih + cell.bias_hh).chunk(gates)
    assert 0 <= forget.min() < 1 < forget.max() <= math.log(SPAN - 1)
    assert torch.cat([first, *rest]).abs().max() <= 2 * 50**-0.5


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_what_was_seen_fifty_steps_ago_still_counts(name):
    """Outputs after two different first inputs, with a span and without."""
    differences = []
    for span in (0, SPAN):
        torch.manual_seed(0)
        core = make_core(name, 4, hidden_size=32, memory_span=span)
        inputs = torch.randn(51, 1, 4).repeat(1, 2, 1)
        inputs[0, 1] *= -1
        with torch.no_grad():
            outputs, _ = unroll(core, inputs, torch.zeros(51, 2, dtype=torch.bool), core.initial_state(2))
        differences.append((outputs[-1, 0] - outputs[-1, 1]).abs().max().item())
    assert differences[1] > 1e-3
    assert differences[1] > 100 * differences[0]


@pytest.mark.parametrize("name", ["fwm", "mnm-p", "mnm-g"])
def test_memories_with_a_controller_hand_the_span_on(name):
    cell = make_core(name, 4, hidden_size=8, memory_size=4, memory_span=SPAN).controller.cell
    first, forget, *_ = (cell.bias_ih + cell.bias_hh).chunk(4)
    assert 0 <= forget.min()
    assert first.abs().max() <= 2 * 8**-0.5 < forget.max()


@pytest.mark.parametrize("name", ["lstm", "gru", "fwm", "mnm-p"])
@pytest.mark.parametrize("span", [-1, 1, 2])
def test_a_span_that_gates_cannot_have_is_named(name, span):
    with pytest.raises(ValueError, match=rf"memory_span is {span}; allowed: 0 \(torch's biases\) or at least 3 steps"):
        make_core(name, 4, memory_span=span)
