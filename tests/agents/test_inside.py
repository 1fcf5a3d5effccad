"""Panels say what the core did: recomputed quantities rebuild the core's own step, sums are sums, known filters."""

import math
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
from engram.agents.cores.rmc import RMC, RelationalBlock
from engram.agents.inside import Trace, over_time, panels, recorded
from engram.agents.inside.gated import time_constants
from engram.agents.inside.slots import attention, openness
from engram.agents.inside.written import attribution

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
        rows = math.prod(map(len, panel.tables)) if panel.kind == "matrix" else len(panel.labels)
        assert panel.values.shape == (rows, T), panel.title
        assert panel.values.dtype == np.float32
        assert np.isfinite(panel.values).all(), panel.title
        if panel.scale == "share":
            assert panel.values.min() >= 0, panel.title
            assert panel.values.max() <= 1 + 1e-6, panel.title
        starts = [start for _, start in panel.bands]
        assert starts == sorted(starts)


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


@pytest.mark.parametrize("gate", ["memory", "unit"])
def test_attention_and_gates_rebuild_the_step_of_the_rmc(gate: str) -> None:
    core, trace = traced("rmc", gate=gate)
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
    if gate == "memory":
        rebuilt = i.unsqueeze(2) * candidate.tanh() + f.unsqueeze(2) * memory
        torch.testing.assert_close(rebuilt, trace.after.memory, rtol=1e-4, atol=1e-5)
    else:  # means over a slot's units, so only where both parts are alike for all units: the bounds must hold
        assert ((i > 0) & (i < 1) & (f > 0) & (f < 1)).all()


def test_shares_of_writes_rebuild_what_fwm_reads() -> None:
    """With one hop the parts sum to what is read before its LayerNorm; shares are those parts' norms."""
    core, trace = traced("fwm", num_reads=1, write_scale=8.0)
    assert isinstance(core, FWM)
    with torch.no_grad():
        share, added, norm = attribution(core, trace)
        new, asked = core.written(trace.after.controller.h), core.asked(trace.after.controller.h)
    # By hand: follow every write through all rescalings.
    memory, parts = torch.zeros(T, 4, 4, 4), []
    for t in range(T):
        old = torch.einsum("abv,a,b->v", memory.sum(0), new.key1[t], new.key2[t])
        memory[t] = torch.einsum("a,b,v->abv", new.key1[t], new.key2[t], new.rate[t] * (new.value[t] - old))
        memory /= memory.sum(0).norm().clamp(min=1)
        torch.testing.assert_close(memory.sum(0), trace.after.memory[t], rtol=1e-4, atol=1e-5)
        sizes = torch.einsum("jabv,a,b->jv", memory, asked.query[t], asked.hops[t, 0]).norm(dim=1)
        parts.append(sizes / sizes.sum())
    torch.testing.assert_close(share, torch.stack(parts), rtol=1e-3, atol=1e-5)
    assert (added > 0).all()
    assert (norm[-4:] > 0.999).all(), "nothing was rescaled, so the test is an easy one"


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


def test_time_constants_of_known_series() -> None:
    rng = np.random.default_rng(0)
    steps = 20_000
    noise = rng.normal(size=(2, steps))
    series = np.zeros((4, steps), np.float32)
    for row, keep in enumerate((0.5, 0.95)):  # autocorrelation keep^lag
        for t in range(1, steps):
            series[row, t] = keep * series[row, t - 1] + noise[row, t]
    series[2, steps // 2 :] = 1.0
    series[3] = 7.0
    spans = time_constants(series)
    assert spans[0] == pytest.approx(-1 / math.log(0.5), rel=0.1)
    assert spans[1] == pytest.approx(-1 / math.log(0.95), rel=0.15)
    assert spans[2] > 1000
    assert spans[3] == steps
