"""Panels say what the core did: recomputed quantities rebuild the core's own step, sums are sums, known filters."""

from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engram.agents.cores import make_core
from engram.agents.cores.concrete import Concrete
from engram.agents.cores.core import Core
from engram.agents.cores.fwm import FWM
from engram.agents.cores.gtrxl import GTrXL, Layer
from engram.agents.cores.linear.elementwise import FFM, LRU, Block
from engram.agents.cores.mnm import MNM, recall
from engram.agents.cores.rmc import RMC, RelationalBlock
from engram.agents.inside import Trace, attention, openness, over_time, panels, recorded

T, B, D = 12, 3, 5
CORES: dict[str, dict[str, Any]] = {
    "rmc": {"num_slots": 3, "num_heads": 2, "head_size": 4, "key_size": 3},
    "fwm": {"hidden_size": 8, "memory_size": 4},
    "mnm-p": {"hidden_size": 8, "memory_size": 4, "num_heads": 2},
    "mnm-g": {"hidden_size": 8, "memory_size": 4, "num_heads": 2},
    "concrete": {"pool_size": 6, "num_pools": 4},
    "parallel": {"pool_size": 6, "num_pools": 4},
    "lstm": {"hidden_size": 8},
    "gru": {"hidden_size": 8},
    "conv-lstm": {"height": 1, "width": 2, "hidden_channels": 3},
    "gtrxl": {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "head_size": 4, "mlp_size": 8, "memory_length": 5},
    "lru": {"hidden_size": 8, "state_size": 6, "num_blocks": 2},
    "min-gru": {"hidden_size": 8},
    "ffm": {"hidden_size": 8, "memory_size": 4, "context_size": 2, "max_period": 16},
    "feedforward": {"hidden_size": 8},
}


def traced(name: str, index: int = 1, **options: Any) -> tuple[Core, Trace]:
    torch.manual_seed(0)
    core = make_core(name, D, **(CORES[name] | options))
    state = core.initial_state(B)
    with torch.no_grad(), recorded(core) as calls:
        for inputs in torch.randn(T, B, D):
            _, state = core(inputs, state)
    return core, over_time(calls, index)


@pytest.mark.parametrize("name", CORES)
def test_panels_have_a_finite_number_for_every_label_and_step(name: str) -> None:
    for panel in panels(*traced(name)):
        assert panel.values.shape == (len(panel.labels), T), panel.title
        assert panel.values.dtype == np.float32
        assert np.isfinite(panel.values).all(), panel.title
        if panel.scale == "share":
            assert panel.values.min() >= 0, panel.title
            assert panel.values.max() <= 1 + 1e-6, panel.title


def test_recording_leaves_no_hook_and_changes_no_number() -> None:
    core = make_core("gru", D, **CORES["gru"])
    inputs, state = torch.randn(B, D), core.initial_state(B)
    plain, _ = core(inputs, state)
    with recorded(core) as calls:
        output, _ = core(inputs, state)
    assert torch.equal(plain, output)
    assert not core._forward_hooks  # pyright: ignore[reportPrivateUsage]
    core(inputs, state)
    assert len(calls) == 1


def test_a_state_of_ones_own_is_shown_as_it_describes_itself() -> None:
    core, trace = traced("gru")

    class Own(Core):
        def describe(self, state: Any) -> dict[str, Tensor]:
            return {"sign": state.h[:, :2].sign()}

    (panel, *_) = panels(Own(), trace)
    assert panel.title == "state: sign"
    np.testing.assert_array_equal(panel.values, trace.after.h[:, :2].sign().t().numpy())
    assert isinstance(core, Core)


@pytest.mark.integration
@pytest.mark.parametrize("options", [{}, {"gate": "unit"}])
def test_attention_and_gates_rebuild_the_step_of_the_rmc(options: dict[str, Any]) -> None:
    core, trace = traced("rmc", **options)
    assert isinstance(core, RMC)
    block = cast(RelationalBlock, core.blocks[0])
    memory, heads, key = trace.before.memory, core.num_heads, core.blocks[0].sizes[0]
    with torch.no_grad():
        projected = core.input_projection(trace.inputs)
        rows = torch.cat([memory, projected.unsqueeze(1)], 1)
        v = block.qkv_norm(block.qkv(rows)).unflatten(2, (heads, -1))[..., 2 * key :]
        attended = torch.einsum("thnm,tmhv->tnhv", attention(core, memory, projected), v).flatten(2)
        z = block.attention_norm(memory + attended)
        y = core.mlp[1](F.relu(core.mlp[0](z)))
        candidate = block.mlp_norm(z + y)
        i, f = openness(core, memory, projected)
    if "gate" not in options:
        rebuilt = i.unsqueeze(2) * candidate.tanh() + f.unsqueeze(2) * memory
        torch.testing.assert_close(rebuilt, trace.after.memory, rtol=1e-4, atol=1e-5)
    else:  # means over a slot's units, so only where both parts are alike for all units: the bounds must hold
        assert ((i > 0) & (i < 1) & (f > 0) & (f < 1)).all()


def test_strength_of_writes_is_that_of_the_fwm() -> None:
    """The norm of an update, before rescaling, by a loop over the steps."""
    core, trace = traced("fwm", write_scale=8.0)
    assert isinstance(core, FWM)
    strength, added = panels(core, trace)[0].values
    with torch.no_grad():
        new = core.compute_write(trace.after.controller.h)
    np.testing.assert_allclose(strength, new.rate[:, 0], rtol=1e-5)
    for t in range(T):
        key = torch.einsum("a,b->ab", new.key1[t], new.key2[t])
        update = new.rate[t] * (new.value[t] - torch.einsum("abv,ab->v", trace.before.memory[t], key))
        grown = trace.before.memory[t] + torch.einsum("ab,v->abv", key, update)
        torch.testing.assert_close(grown / grown.norm().clamp(min=1), trace.after.memory[t], rtol=1e-4, atol=1e-5)
        assert added[t] == pytest.approx(float(update.norm()), rel=1e-4)


@pytest.mark.parametrize("name", ["concrete", "parallel"])
def test_half_lives_are_those_of_the_pools(name: str) -> None:
    core = make_core(name, 1, pool_size=1, num_pools=4, base=2.0)
    assert isinstance(core, Concrete)
    state, seen = core.initial_state(1), []
    with torch.no_grad():
        for t in range(400):
            _, state = core(torch.full((1, 1), float(t == 0)), state)
            seen.append(state.pools[0, :, 0])
    passed = torch.stack(seen).cumsum(0)
    passed = passed / passed[-1]
    for pool, half_life in enumerate(core.half_lives()):
        steps = int((passed[:, pool] < 0.5).sum())  # so many steps are not enough
        assert steps <= half_life <= steps + 1
    assert core.half_lives() == sorted(core.half_lives())


def test_attention_of_a_window_rebuilds_the_step_of_gtrxl() -> None:
    core, trace = traced("gtrxl")
    assert isinstance(core, GTrXL)
    first, second = core.layers
    assert isinstance(first, Layer)
    assert isinstance(second, Layer)
    with torch.no_grad():
        weights, _ = core.attention(trace.before, trace.after)
        x = trace.after.past[:, 0, -1:]
        keys = first.norm_1(torch.cat([trace.before.past[:, 0], x], 1))
        v = first.key_value(keys).chunk(2, -1)[1].unflatten(-1, (2, -1))
        attended = torch.einsum("thm,tmhd->thd", weights, v).flatten(1).unsqueeze(1)
        y = first.gate_1(x, first.out(attended).relu())
        rebuilt = first.gate_2(y, first.mlp(first.norm_2(y)).relu())
    torch.testing.assert_close(rebuilt, trace.after.past[:, 1, -1:], rtol=1e-4, atol=1e-5)
    ages, steps = panels(core, trace)[:2]
    np.testing.assert_allclose(ages.values[0], (weights[:, 0] * torch.arange(5, -1, -1)).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps.values.sum(0), 1.0, rtol=1e-4)
    both = torch.stack(core.attention(trace.before, trace.after), 1).detach()
    for reader, writer in ((0, 0), (3, 1), (9, 9), (9, 4)):
        expected = float(both[reader, :, :, 5 - (reader - writer)].mean())
        assert steps.values[writer, reader] == pytest.approx(expected, rel=1e-4)
    assert steps.values[3, 9] == 0  # six steps ago, where five are held
    assert not steps.values[9, :9].any(), "a step looks ahead"


def test_half_lives_are_those_of_complex_states() -> None:
    torch.manual_seed(0)
    lru, ffm = make_core("lru", 2, hidden_size=3, state_size=4), make_core("ffm", 2, hidden_size=3, memory_size=4)
    assert isinstance(lru, LRU)
    assert isinstance(ffm, FFM)
    (block,) = lru.blocks
    assert isinstance(block, Block)
    with torch.no_grad():
        block.norm.bias.zero_()  # an input of 0 then adds nothing
        lru.encoder.bias.zero_()
        ffm.maps.bias.zero_()
        state, traces, sizes, faded = lru.initial_state(1), ffm.initial_state(1), [], []
        for t in range(6):
            inputs = torch.full((1, 2), float(t == 0)) * torch.tensor([1.0, -0.5])
            state, traces = lru(inputs, state)[1], ffm(inputs, traces)[1]
            sizes.append(state.h[0, 0].norm(dim=1))
            faded.append(traces.traces[0, :, 0].norm(dim=1))
    for seen, half_lives in ((sizes, block.half_lives()), (faded, ffm.half_lives())):
        for t in range(1, 6):
            torch.testing.assert_close(seen[t], seen[0] * 0.5 ** (t / half_lives.detach()), rtol=1e-4, atol=1e-6)
    shown = panels(ffm, Trace(torch.zeros(1, 2), traces, traces))[0]
    ordered = [float(label.rpartition(" ")[2]) for label in shown.labels]
    assert ordered == sorted(ordered)


def test_new_shares_of_min_gru_are_its_gates() -> None:
    core, trace = traced("min-gru")
    shown = panels(core, trace)[0]
    with torch.no_grad():
        for number, inputs in enumerate((trace.inputs, trace.after.h[:, 0])):
            gate = core.layers[number](inputs)[:, :8].sigmoid().mean(1)  # pyright: ignore
            np.testing.assert_allclose(shown.values[number], gate, rtol=1e-5)


@pytest.mark.integration
def test_panels_of_the_mnm_are_what_a_write_does() -> None:
    """Change of every layer and the error before and after, by a loop over the steps."""
    core, trace = traced("mnm-p")
    change, error, rate, read = panels(core, trace)[:4]
    assert isinstance(core, MNM)
    with torch.no_grad():
        for t in range(T):
            beta, key, value, _ = core.heads(trace.after.controller.h[t : t + 1])
            for state, row in ((trace.before, 0), (trace.after, 1)):
                memory = type(state.memory)(*(leaf[t : t + 1] for leaf in state.memory))
                distance = (recall(memory, key)[-1] - value).square().mean()
                assert error.values[row, t] == pytest.approx(float(distance), rel=1e-4)
            for layer, (old, new) in enumerate(zip(trace.before.memory, trace.after.memory, strict=True)):
                assert change.values[layer, t] == pytest.approx(
                    float((new[t] - old[t]).norm() / old[t].norm()), rel=1e-4
                )
            assert rate.values[0, t] == pytest.approx(float(beta), rel=1e-5)
    np.testing.assert_array_equal(read.values, trace.after.read.t())


def test_pools_are_shown_from_fast_to_slow() -> None:
    core, trace = traced("concrete")
    assert isinstance(core, Concrete)
    shown, sizes = panels(core, trace)[:2]
    names = [f"pool {n}: half-life {x:.3g}" for n, x in enumerate(core.half_lives(), start=1)]
    assert [label for label in shown.labels if label] == names
    for n in range(4):
        pool, first = trace.after.pools[:, n], list(shown.labels).index(names[n])
        np.testing.assert_allclose(shown.values[first : first + 6], (pool / pool.abs().max()).t(), rtol=1e-5)
        np.testing.assert_allclose(sizes.values[n], pool.norm(dim=1), rtol=1e-5)


@pytest.mark.integration
def test_similarity_and_change_of_slots() -> None:
    core, trace = traced("rmc")
    found = {panel.title: panel for panel in panels(core, trace)}
    memory, before = trace.after.memory, trace.before.memory
    pairs = [(0, 1), (0, 2), (1, 2)]
    for row, (a, b) in enumerate(pairs):
        cosine = F.cosine_similarity(memory[:, a], memory[:, b], dim=1)
        np.testing.assert_allclose(found["similarity of slots"].values[row], cosine, rtol=1e-4, atol=1e-6)
    share = (memory - before).norm(dim=2) / memory.norm(dim=2)
    np.testing.assert_allclose(found["change of slots"].values, share.t(), rtol=1e-4, atol=1e-6)
