"""An unroll arrives as it was sent, bit by bit, whatever is in it and however it travels."""

import pickle
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import GetTimeoutError
from torch import Tensor

from engram.actors.factory import ActorFactory
from engram.actors.packed import nbytes
from engram.actors.remote import slot
from engram.actors.remote.slot import SMALL_BYTES, pack, unpack
from engram.actors.unroll import Unroll
from engram.agents.agent import AgentState
from engram.agents.config import AgentConfig
from engram.agents.cores.registry import core_names
from engram.agents.values import AgentOutput, EnvOutput

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


class Inner(NamedTuple):
    memory: Tensor
    strength: Tensor


class Outer(NamedTuple):
    inner: Inner
    clock: Tensor


def in_band(parcel: Any) -> Any:
    return pickle.loads(pickle.dumps(parcel, protocol=5))


def out_of_band(parcel: Any) -> Any:
    """As Ray does it: buffers go separately, and what is made of them cannot be written to."""
    buffers: list[pickle.PickleBuffer] = []
    words = pickle.dumps(parcel, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(words, buffers=[buffer.raw().tobytes() for buffer in buffers])


def taken_apart(value: Any) -> Any:
    """Types, names, dtypes, shapes and bytes of a nested value."""
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, tuple):
        return type(value), [taken_apart(part) for part in value]
    if isinstance(value, dict):
        return [(key, taken_apart(part)) for key, part in value.items()]
    return value


def contiguous(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.contiguous()
    if isinstance(value, tuple):
        return type(value)(*map(contiguous, value))
    return {key: contiguous(part) for key, part in value.items()} if isinstance(value, dict) else value


@st.composite
def tensors(draw: st.DrawFn, rows: tuple[int, ...]) -> Tensor:
    """Random bits (nans with payloads included), of any dtype, perhaps of no elements, perhaps not contiguous."""
    dtype, inner = draw(st.sampled_from(DTYPES)), tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    shape, seed = rows + inner, draw(st.integers(0, 2**32))
    size = torch.tensor([], dtype=dtype).element_size()
    flat = torch.randint(256, (*shape, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    tensor = flat[..., 0] > 127 if dtype == torch.bool else flat.view(dtype)[..., 0]
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if draw(st.booleans()) else tensor.contiguous()


@st.composite
def unrolls(draw: st.DrawFn) -> Unroll:
    steps, width = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 5, 9000]))
    state, row, env_row = tensors((width,)), tensors((steps, width)), tensors((steps + 1, width))
    observation = st.recursive(env_row, lambda inner: st.dictionaries(st.text(max_size=3), inner), max_leaves=4)
    return Unroll(
        AgentState(Outer(Inner(draw(state), draw(state)), draw(state)), draw(state), draw(state), draw(state)),
        EnvOutput(draw(observation), draw(env_row), draw(env_row), draw(env_row), draw(st.none() | env_row)),
        AgentOutput(draw(row), draw(row), draw(row)),
        draw(state),
        draw(st.integers(0, 99)),
        draw(st.integers(0, 99)),
        draw(tensors((draw(st.integers(0, 3)),))),
        draw(st.floats(allow_nan=False)),
    )


@pytest.mark.integration
@settings(deadline=None, max_examples=60)
@given(unroll=unrolls())
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_it_arrives_bit_by_bit(unroll: Unroll) -> None:
    expected = taken_apart(contiguous(unroll))
    assert taken_apart(contiguous(pickle.loads(pickle.dumps(unroll)))) == expected
    for travel in (in_band, out_of_band):
        assert taken_apart(unpack(travel(pack(unroll)))) == expected


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("core", core_names())
def test_every_cores_state_arrives(core: str) -> None:
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core=core), num_envs=2, unroll_length=2, seed=0)
    unroll = factory.make_actor(0).unroll()
    for travel in (in_band, out_of_band):
        assert taken_apart(unpack(travel(pack(unroll)))) == taken_apart(contiguous(unroll))


@pytest.mark.parametrize("num_envs", [1, 200])
def test_a_small_unroll_is_one_string_and_a_large_one_is_not_copied(num_envs: int) -> None:
    agent = AgentConfig(core="lstm", core_args={"hidden_size": 256})
    factory = ActorFactory(env="boxworld", agent=agent, num_envs=num_envs, unroll_length=3, seed=0)
    unroll = factory.make_actor(0).unroll()
    parcel = pack(unroll)
    if nbytes(unroll) < SMALL_BYTES:
        assert isinstance(parcel, bytes)
    else:
        assert len(pickle.dumps(parcel, protocol=5, buffer_callback=[].append)) < 2000
        unroll.agent.value[0, 0] = 7.0
        assert unpack(parcel).agent.value[0, 0] == 7.0


def test_a_result_that_arrives_late_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(refs: Any, timeout: float) -> Any:
        if timeout < 100:
            raise GetTimeoutError
        return refs

    monkeypatch.setattr(slot.ray, "get", get)
    assert slot.fetch(["a"], 2.0, 120.0) == ["a"]
    assert slot.fetch(["a", "b"], 2.0, 120.0) == ["a", "b"]
    assert isinstance(slot.fetch(["a"], 2.0, 50.0)[0], GetTimeoutError)
