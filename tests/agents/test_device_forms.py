"""Unrolls that do the same operations for every batch, for devices that are not to be waited for, against the loop."""

import math

import pytest
import torch

from engram.agents.cores import make_core
from unrolls import compare_with_loop, random_inputs, randomize

SIZE = 5
POOLS = {"pool_size": 4, "num_pools": 3, "viewport_size": 2, "summarizer_size": 3}
FORMS = pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("fwm", "unroll_pieces", {"hidden_size": 4, "memory_size": 3, "num_reads": 2}),
        ("lstm", "unroll_at_once", {"hidden_size": 4}),
        ("gru", "unroll_at_once", {"hidden_size": 4}),
        ("concrete", "unroll_at_once", POOLS),
        ("parallel", "unroll_at_once", POOLS),
    ],
)


def small(name, options, scale=0.4):
    return randomize(make_core(name, SIZE, **options), scale)


@FORMS
@pytest.mark.parametrize(
    ("scale", "steps", "density", "bptt_length"),
    [(0.4, 70, 0.05, None), (2.0, 70, 0.0, 20), (2.0, 20, 0.3, 3), (0.4, 5, 1, 1)],
)
def test_it_is_the_loop_over_steps_with_its_gradients(name, form, options, scale, steps, density, bptt_length):
    core = small(name, options, scale)
    way = getattr(type(core), form)
    compare_with_loop(core, SIZE, bptt_length, tolerance=1e-8, steps=steps, density=density, unroll=way)


@FORMS
def test_nothing_from_before_a_reset_stays_not_even_nan(name, form, options):
    core = small(name, options)
    inputs, reset = random_inputs(SIZE, steps=40)
    reset[:], reset[20] = False, True
    broken = inputs.detach().clone()
    broken[:20] = math.nan
    state = core.initial_state(len(reset[0]))
    (wanted, last, *_), (found, after, *_) = (
        getattr(core, form)(x, reset, state, None) for x in (inputs.detach(), broken)
    )
    assert found[:20].isnan().all()
    assert torch.equal(found[20:], wanted[20:])
    for a, b in zip(torch.utils._pytree.tree_leaves(after), torch.utils._pytree.tree_leaves(last), strict=True):
        torch.testing.assert_close(a, b)


@FORMS
def test_a_state_that_is_no_number_is_gone_after_a_reset(name, form, options):
    core = small(name, options)
    inputs, reset = random_inputs(SIZE, steps=10)
    reset[:], reset[4] = False, True
    state = core.initial_state(len(reset[0]))
    spoilt = torch.utils._pytree.tree_map(lambda leaf: torch.full_like(leaf, math.nan), state)
    wanted, found = (getattr(core, form)(inputs.detach(), reset, each, None)[0] for each in (state, spoilt))
    assert found[:4].isnan().any()
    torch.testing.assert_close(found[4:], wanted[4:])
