"""Concrete and its parallel control: the chain of filters against its equation, impulse responses, gradient rule."""

import math
from fractions import Fraction

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engram.agents.cores import make_core, unroll
from engram.agents.cores.core import unroll_step_by_step
from unrolls import check_gradients, compare_chunks, compare_with_loop, random_inputs, random_state, randomize

SIZE, POOL, POOLS, VIEW, OUT = 5, 4, 3, 2, 6
UNITS = pytest.mark.parametrize("units", [False, True], ids=["", "unit-views"])
WAYS = pytest.mark.parametrize("way", ["unroll_compiled", "unroll_at_once"])
BOTH = pytest.mark.parametrize("name", ["concrete", "parallel"])


def small(name, **options):
    sizes = {"pool_size": POOL, "num_pools": POOLS, "viewport_size": VIEW, "summarizer_size": OUT, "base": 1.7}
    return randomize(make_core(name, SIZE, **(sizes | options)))


def slow_pools(name, core, x, pools, base=1.7):
    """Section 2 for one row: inputs [SIZE], pools [POOLS][POOL] -> the next pools."""
    rates = [base**-n for n in range(1, POOLS + 1)]
    embedded = [sum(w * v for w, v in zip(row, x, strict=True)) / rates[0] for row in core.embedding.weight.tolist()]
    new, below = [], embedded
    for rate, pool in zip(rates, pools, strict=True):
        source = below if name == "concrete" else embedded
        below = [rate * s + (1 - rate) * p for s, p in zip(source, pool, strict=True)]
        new.append(below)
    return new


def slow_units(name, base=1.7):
    """Of every pool the root of the sum of its squared responses to one input of 1."""
    core = small(name, base=base)
    with torch.no_grad():
        core.embedding.weight.copy_(torch.eye(POOL, SIZE, dtype=torch.float64) / base)
    pools, squares = [[0.0] * POOL] * POOLS, [0.0] * POOLS
    for lag in range(400):
        pools = slow_pools(name, core, [float(lag == 0), *[0.0] * (SIZE - 1)], pools, base)
        squares = [total + pool[0] ** 2 for total, pool in zip(squares, pools, strict=True)]
    return [math.sqrt(total) for total in squares]


def slow_output(core, pools, units=(1.0,) * POOLS):
    """One viewport per pool, then the summarizer, each with a ReLU."""
    views = []
    pools = [[number / unit for number in pool] for pool, unit in zip(pools, units, strict=True)]
    for pool, weight, bias in zip(pools, core.viewport_weight.tolist(), core.viewport_bias.tolist(), strict=True):
        views += [max(0.0, bias[v] + sum(pool[p] * weight[p][v] for p in range(POOL))) for v in range(VIEW)]
    rows = zip(core.summarizer.weight.tolist(), core.summarizer.bias.tolist(), strict=True)
    return [max(0.0, b + sum(w * v for w, v in zip(row, views, strict=True))) for row, b in rows]


@BOTH
@UNITS
def test_steps_are_the_equations(name, units):
    core = small(name, unit_views=units)
    in_units = {"units": slow_units(name)} if units else {}
    inputs, _ = random_inputs(SIZE, steps=4)
    state = random_state(core)
    pools = state.pools.tolist()
    for x in inputs:
        output, state = core(x, state)
        pools = [slow_pools(name, core, row, p) for row, p in zip(x.tolist(), pools, strict=True)]
        outputs = [slow_output(core, p, **in_units) for p in pools]
        for ours, slow in ((output, outputs), (state.pools, pools)):
            torch.testing.assert_close(ours, torch.tensor(slow, dtype=torch.float64), atol=1e-9, rtol=1e-9)


def blocked_loop(name, core, inputs, reset, pools, base=1.7):
    """The equations once more, by autograd, with gradient through the first pool only -> outputs [T, B, OUT]."""
    outputs = []
    for x, starts in zip(inputs, reset, strict=True):
        pools = torch.where(starts.reshape(-1, 1, 1), 0.0, pools)
        embedded = base * x @ core.embedding.weight.T
        new = [embedded / base + (1 - 1 / base) * pools[:, 0]]
        for n in range(2, POOLS + 1):
            source = new[-1] if name == "concrete" else embedded
            new.append((base**-n * source + (1 - base**-n) * pools[:, n - 1]).detach())
        pools = torch.stack(new, 1)
        views = [(pools[:, n] @ core.viewport_weight[n] + core.viewport_bias[n]).relu() for n in range(POOLS)]
        outputs.append(core.summarizer(torch.cat(views, 1)).relu())
    return torch.stack(outputs)


@pytest.mark.integration
@BOTH
@WAYS
def test_gradient_passes_through_the_first_pool_only(name, way):
    core = small(name)
    inputs, reset = random_inputs(SIZE, steps=40, density=0.05)
    state = random_state(core)
    results = []
    for outputs in (
        getattr(core, way)(inputs, reset, state, None)[0],
        blocked_loop(name, core, inputs, reset, state.pools),
    ):
        gradients = torch.autograd.grad(outputs.square().sum(), [inputs, state.pools, *core.parameters()])
        results.append([outputs, *gradients])
    for ours, slow in zip(*results, strict=True):
        torch.testing.assert_close(ours, slow, atol=1e-9, rtol=1e-9)
    on_pools = results[0][2]
    assert on_pools[1:, 0].any()
    assert not on_pools[:, 1:].any()


@BOTH
def test_gradients_of_a_single_pool_are_those_of_finite_differences(name):
    check_gradients(small(name, num_pools=1), SIZE)


@BOTH
@WAYS
@UNITS
@pytest.mark.parametrize(
    ("num_pools", "steps", "density", "bptt_length"),
    [(1, 50, 0.05, None), (2, 50, 0, 20), (5, 50, 0.05, None), (5, 50, 0.3, 3), (2, 5, 1, 1)],
)
def test_unroll_is_the_loop_over_steps(name, way, units, num_pools, steps, density, bptt_length):
    core = small(name, num_pools=num_pools, unit_views=units)
    compare_with_loop(core, SIZE, bptt_length, steps=steps, density=density, unroll=getattr(type(core), way))


@BOTH
@pytest.mark.parametrize("bptt_length", [None, 7])
def test_wide_inputs_are_embedded_before_they_are_seen(name, bptt_length):
    """Three inputs to the one number of a pool: two products are fewer operations than one."""
    compare_with_loop(small(name, pool_size=1), SIZE, bptt_length, steps=30, density=0.1)


@BOTH
@pytest.mark.parametrize("read", [0, 1], ids=["views", "pools"])
def test_gradient_of_the_outputs_or_of_the_last_state_alone(name, read):
    core = small(name)
    inputs, reset = random_inputs(SIZE, steps=9, density=0.1)
    state = random_state(core)
    results = []
    for way in (type(core).unroll, unroll_step_by_step):
        outputs, last, _ = way(core, inputs, reset, state, 4)
        end = (outputs, last.pools)[read]
        sources = [inputs, state.pools, *core.parameters()]
        results.append(torch.autograd.grad(end.square().sum(), sources, materialize_grads=True))
    for ours, loop in zip(*results, strict=True):
        torch.testing.assert_close(ours, loop, atol=1e-10, rtol=1e-10)


@BOTH
@WAYS
def test_nothing_from_before_a_reset_stays_not_even_nan(name, way):
    core = small(name)
    inputs, reset = random_inputs(SIZE, steps=40)
    reset[:], reset[20] = False, True
    broken = inputs.detach().clone()
    broken[:20] = math.nan
    state = core.initial_state(len(reset[0]))
    found = [getattr(core, way)(x, reset, state, None) for x in (inputs.detach(), broken)]
    assert found[1][0][:20].isnan().any()
    torch.testing.assert_close(found[1][0][20:], found[0][0][20:])
    torch.testing.assert_close(found[1][1].pools, found[0][1].pools)


@BOTH
def test_pieces_of_an_unroll_are_the_unroll(name):
    compare_chunks(small(name), SIZE)


# -- what the pools hold ---------------------------------------------------------------------------------------------


def impulse_responses(name, lags, num_pools, reset_before=None):
    """Values of every pool after an input of 1 that came `lag` steps before, float64 [len(lags), num_pools].

    With reset_before, the row has seen other inputs and was reset this many steps before the impulse.
    """
    core = make_core(name, 3, pool_size=1, num_pools=num_pools, viewport_size=1, summarizer_size=1).double()
    history = reset_before or 0
    steps = history + max(lags) + 1
    inputs = torch.zeros(steps, len(lags), 3, dtype=torch.float64)
    reset = torch.zeros(steps, len(lags), dtype=torch.bool)
    state = core.initial_state(len(lags))
    for row, lag in enumerate(lags):
        when = steps - 1 - lag
        inputs[when, row, 0] = 1
        if reset_before:
            inputs[: when - reset_before, row] = 7
            reset[when - reset_before, row] = True
            state.pools[row] = 5
    return unroll(core, inputs, reset, state)[1].pools[..., 0]


def chain_response(lag, pool):
    """Partial fractions of the product of a_i / (1 - d_i / z), d_i = 1 - 2^-i: exact."""
    decays = [1 - Fraction(1, 2**i) for i in range(1, pool + 1)]
    total = Fraction(0)
    for i, decay in enumerate(decays):
        others = math.prod((decay - other for j, other in enumerate(decays) if j != i), start=Fraction(1))
        total += decay ** (lag + pool - 1) / others
    return float(total * math.prod((1 - decay for decay in decays), start=Fraction(1)))


LAGS = [0, 1, 2, 5, 15, 16, 17, 34, 74, 155, 400]


@pytest.mark.parametrize("reset_before", [None, 1, 20])
def test_impulse_responses_of_a_chain_of_twelve_pools(reset_before):
    ours = impulse_responses("concrete", LAGS, 12, reset_before)
    expected = [[chain_response(lag, pool) for pool in range(1, 13)] for lag in LAGS]
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=1e-9)


def test_impulse_responses_of_parallel_pools():
    expected = [[2.0**-n * (1 - 2.0**-n) ** lag for n in range(1, 13)] for lag in LAGS]
    ours = impulse_responses("parallel", LAGS, 12)
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=1e-9)


@pytest.mark.parametrize("resets", [False, True])
def test_mean_lags_are_1_4_11_26_57(resets):
    """An impulse is followed until nothing of it is left; sum of lag * response / sum of responses."""
    lags = list(range(900))
    response = impulse_responses("concrete", lags, 5, reset_before=3 if resets else None)
    mean = (torch.tensor(lags, dtype=torch.float64) @ response) / response.sum(0)
    torch.testing.assert_close(mean, torch.tensor([1, 4, 11, 26, 57], dtype=torch.float64), atol=1e-6, rtol=0)


def test_peak_lags_tile_time():
    peaks = impulse_responses("concrete", list(range(700)), 9).argmax(0)
    assert peaks.tolist() == [0, 1, 5, 15, 34, 74, 155, 317, 643]


@BOTH
def test_embedding_starts_as_a_padded_identity(name):
    core = make_core(name, 3, pool_size=5, base=4.0)
    assert torch.equal(core.embedding.weight, torch.eye(5, 3) / 4)
    assert core.embedding.bias is None


# -- the unroll without a loop over time -----------------------------------------------------------------------------


@pytest.mark.integration
@BOTH
def test_step_and_unroll_agree_to_float32_rounding_over_300_steps(name):
    torch.manual_seed(0)
    core = make_core(name, 32)
    inputs, reset = torch.randn(300, 8, 32), torch.rand(300, 8) < 0.01
    fast, fast_state = unroll(core, inputs, reset, core.initial_state(8))
    slow, slow_state, _ = unroll_step_by_step(core, inputs, reset, core.initial_state(8))
    torch.testing.assert_close(fast, slow, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(fast_state.pools, slow_state.pools, atol=2e-6, rtol=1e-5)


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.integration
@BOTH
def test_an_unroll_has_no_loop_over_time(name):
    """Nor has its gradient. How much faster that is, `benchmarks/speed/cores.py` measures."""
    core = small(name)

    def operations(run, steps):
        inputs, reset = torch.randn(steps, 2, SIZE, dtype=torch.float64), torch.zeros(steps, 2, dtype=torch.bool)
        with Operations() as counted:
            outputs = run(core, inputs, reset, core.initial_state(2))[0]
            torch.autograd.grad(outputs.sum(), list(core.parameters()))
        return counted.count

    assert operations(type(core).unroll, 256) < 1.1 * operations(type(core).unroll, 64)
    assert operations(unroll_step_by_step, 256) > 3 * operations(unroll_step_by_step, 64)


@BOTH
def test_ten_thousand_steps_stay_finite(name):
    torch.manual_seed(0)
    core = make_core(name, 8, pool_size=8, num_pools=12)
    with torch.no_grad():
        outputs, state = unroll(
            core, 5 * torch.randn(10_000, 2, 8), torch.zeros(10_000, 2, dtype=torch.bool), core.initial_state(2)
        )
    assert outputs.isfinite().all()
    assert state.pools.isfinite().all()


@pytest.mark.parametrize(("option", "value"), [("num_pools", 0), ("base", 1.0)])
def test_impossible_options_are_named(option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}; allowed"):
        make_core("concrete", SIZE, **{option: value})
