"""An unroll on its way to another process: its tensors' bytes, and in few words what they are.

Pickling a tensor calls Python a dozen times on either side, which for the small unrolls of narrow actors is more work
than all the rest of their journey. Here a tensor is its buffer. A small unroll travels as one string of bytes; the
buffers of a large one are not copied by the sender, and the receiver looks at them where they lie.
"""

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .unroll import Unroll

SMALL_BYTES = 1 << 16
"""An unroll of less than this is one string: copying it takes microseconds, a dozen buffers of its own a hundred."""


class Leaf(NamedTuple):
    """What stands in a tensor's place."""

    dtype: str
    """As numpy spells it."""
    shape: tuple[int, ...]


class Parcel(NamedTuple):
    """An unroll taken apart."""

    form: Any
    """The unroll with a Leaf for every tensor."""
    contents: list[Any]
    """The tensors' bytes in the order of the leaves: PickleBuffers, on arrival any readable buffers."""


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
        array = value.detach().contiguous().numpy()
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
