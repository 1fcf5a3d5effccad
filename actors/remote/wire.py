"""The wire between actor and learner: an unroll as bytes, Ray's serializer for tensors, the fill of the object store.

An unroll travels as its tensors' bytes and a short description of what they are.

Pickling a tensor calls Python a dozen times on either side, which for the small unrolls of narrow actors is more work
than all the rest of their journey. Here a tensor is its buffer. A small unroll travels as one string of bytes; the
buffers of a large one are not copied by the sender, and the receiver looks at them where they lie.
"""

import pickle
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor

from ..unroll import Unroll

SMALL_BYTES = 1 << 16
"""An unroll of less than this is one string: copying it takes microseconds, a dozen buffers of its own a hundred."""


class Leaf(NamedTuple):
    """Stand-in for a tensor."""

    dtype: str
    """As numpy spells it."""
    shape: tuple[int, ...]


class Parcel(NamedTuple):
    """An unroll taken apart."""

    form: Any
    """The unroll with a Leaf for every tensor."""
    contents: list[Any]
    """The tensors' bytes in the order of the leaves: PickleBuffers, on arrival any readable buffers."""


def share_tensors() -> None:
    """Let Ray move tensors as numpy arrays: out-of-band buffers, read without a copy."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    ray.util.register_serializer(torch.Tensor, serializer=lambda x: x.detach().numpy(), deserializer=torch.from_numpy)


def stored_bytes() -> int | None:
    """Bytes in the object stores of all machines, as Ray counts them; None if it does not say so within a second."""
    try:
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        reply = get_memory_info_reply(get_state_from_address(), timeout_seconds=1.0)
        return int(reply.store_stats.object_store_bytes_used)
    except Exception:  # not a public function: whatever a later Ray makes of it, training goes on without the number
        return None


def pack(unroll: Unroll) -> Parcel | bytes:
    """Take an unroll apart. It must not change until the parcel has been pickled."""
    contents: list[Any] = []
    form = _form(unroll, contents)
    parcel = Parcel(form, [pickle.PickleBuffer(array) for array in contents])
    small = sum(array.nbytes for array in contents) < SMALL_BYTES
    return pickle.dumps(parcel, protocol=5) if small else parcel


def unpack(parcel: Parcel | bytes) -> Unroll:
    """The unroll that was packed, bit for bit; its tensors are views of the parcel's contents, not to be written to."""
    form, contents = pickle.loads(parcel) if isinstance(parcel, bytes) else parcel
    return _filled(form, iter(contents))


def _form(value: Any, contents: list[Any]) -> Any:
    """`value` with a Leaf for every tensor, which is appended to `contents` as an array."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        contents.append(array)
        return Leaf(array.dtype.str, array.shape)
    if isinstance(value, tuple):
        return type(value)(*[_form(part, contents) for part in value])
    if isinstance(value, dict):
        return {key: _form(part, contents) for key, part in value.items()}
    return value


def _filled(form: Any, contents: Iterator[Any]) -> Any:
    """`form` with the next contents in its leaves."""
    if isinstance(form, Leaf):
        return torch.from_numpy(np.ndarray(form.shape, form.dtype, next(contents)))
    if isinstance(form, tuple):
        return type(form)(*[_filled(part, contents) for part in form])
    if isinstance(form, dict):
        return {key: _filled(part, contents) for key, part in form.items()}
    return form
