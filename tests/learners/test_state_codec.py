import json
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.learners.checkpoints import pack, unpack


def there_and_back(state: Any) -> Any:
    document, tensors = pack(state)
    return unpack(json.loads(json.dumps(document, allow_nan=False)), tensors)


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and all(type(k) is type(m) for k, m in zip(a, b, strict=True))
            and all(same(a[k], b[k]) for k in a)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and same(list(a.view(-1).tolist()), list(b.view(-1).tolist()))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4))
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(st.text(max_size=3), st.sampled_from(["$tensor", "$x", "a/b"]), st.integers()), inner
        ),
    ),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(states)
def test_plain_values_round_trip(state: Any) -> None:
    assert same(there_and_back(state), state)


TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    assert same(there_and_back({"x": [tensor]}), {"x": [tensor]})


NUMPY_DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_arrays_and_scalars_round_trip(dtype: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 255]]).astype(dtype)
    state = {
        "whole": array,
        "strided": array[:, ::2],
        "empty": array[:0],
        "point": array[1, 2].reshape(()),
        "scalar": array[1, 2],
    }
    assert same(there_and_back(state), {**state, "strided": array[:, ::2].copy()})


def test_special_numbers_keep_their_bits() -> None:
    numbers = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 2**64 - 1, -(10**40)]
    assert same(there_and_back(numbers), numbers)
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000], np.uint64).view(np.float64)
    assert same(there_and_back(bits), bits)
    assert same(there_and_back(np.float64(-0.0)), np.float64(-0.0))


def test_equal_names_do_not_meet() -> None:
    state = {"a": {"b": torch.tensor(1)}, "a/b": torch.tensor(2), "c": {1: torch.tensor(3), "1": torch.tensor(4)}}
    assert same(there_and_back(state), state)


def test_the_table_has_readable_names_and_no_more_than_the_view() -> None:
    whole = torch.zeros(1000, requires_grad=True)
    document, tensors = pack({"agent": {"w": whole[:3]}, "seen": [np.zeros(2)]})
    assert sorted(tensors) == ["agent/w", "seen/0"]
    assert document == {"agent": {"w": {"$tensor": "agent/w"}}, "seen": [{"$array": "seen/0"}]}
    assert tensors["agent/w"].untyped_storage().nbytes() == 12
    assert not tensors["agent/w"].requires_grad


def test_a_packed_tensor_does_not_follow_the_original() -> None:
    tensor, array = torch.zeros(2), np.zeros(2)
    document, tensors = pack([tensor, array])
    tensor += 1
    array += 1
    assert same(unpack(document, tensors), [torch.zeros(2), np.zeros(2)])


class Pair(NamedTuple):
    left: Any
    right: Any


def test_relatives_come_back_as_the_plain_kind() -> None:
    assert same(there_and_back(Pair(1, [2])), (1, [2]))
    assert same(there_and_back(OrderedDict(a=1)), {"a": 1})
    assert type(there_and_back(torch.nn.Parameter(torch.zeros(1)))) is torch.Tensor


def test_optimizer_state_round_trips() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    assert same(there_and_back(optimizer.state_dict()), optimizer.state_dict())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": [1, {2}]}, "state at a/1 is a set; allowed: tensors"),
        ({"a": object()}, "state at a is a object"),
        ({"a": {(1, 2): 3}}, r"state at a has the key \(1, 2\); allowed: str or int"),
        ({"a": np.array(["x"])}, "numpy.str_"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(bad: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pack(bad)
