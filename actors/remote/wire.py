"""The wire between actor and learner: an unroll as bytes, Ray's serializer for tensors, the fill of the object store.

An unroll travels as its tensors' bytes and a short description of what they are.

Pickling a tensor calls Python a dozen times on either side, which for the small unrolls of narrow actors is more work
than all the rest of their journey. Here a tensor is its buffer. A small unroll travels as one string of bytes; the
buffers of a large one are not copied by the sender, and the receiver looks at them where they lie.
"""

import pickle
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor

from ...agents.values import map_leaves
from ..unroll import Unroll

SMALL_BYTES = 1 << 16
"""An unroll of less than this is one string: copying it takes microseconds, a dozen buffers of its own a hundred."""


@dataclass
class Leaf:
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
        from ray._private import state
        from ray._private.internal_api import get_memory_info_reply

        # The state of this connection: an address found by itself may be that of another Ray, which has ended.
        reply = get_memory_info_reply(state.state, timeout_seconds=1.0)
        return int(reply.store_stats.object_store_bytes_used)
    except Exception:  # not a public function: whatever a later Ray makes of it, training goes on without the number
        return None


def pack(unroll: Unroll) -> Parcel | bytes:
    """Take an unroll apart. It must not change until the parcel has been pickled."""
    contents: list[Any] = []

    def take(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        array = value.detach().cpu().contiguous().numpy()
        contents.append(array)
        return Leaf(array.dtype.str, array.shape)

    form = map_leaves(take, unroll)
    parcel = Parcel(form, [pickle.PickleBuffer(array) for array in contents])
    small = sum(array.nbytes for array in contents) < SMALL_BYTES
    return pickle.dumps(parcel, protocol=5) if small else parcel


def unpack(parcel: Parcel | bytes) -> Unroll:
    """The unroll that was packed, bit for bit; its tensors are views of the parcel's contents, not to be written to."""
    form, contents = pickle.loads(parcel) if isinstance(parcel, bytes) else parcel
    rest = iter(contents)

    def put(value: Any) -> Any:
        if not isinstance(value, Leaf):
            return value
        return torch.from_numpy(np.ndarray(value.shape, value.dtype, next(rest)))

    return map_leaves(put, form)
