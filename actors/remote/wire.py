"""Wire format between actor and learner: unrolls as arrays, Ray's serializer for tensors, state of Ray's processes.

Pickling a tensor takes longer than the rest of the transfer of a small unroll; numpy pickles arrays in compiled code. A
small unroll is sent as one string of bytes; the arrays of a large one are not copied.
"""

import pickle
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
import torch
from ray._private import worker
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from ...agents.values import map_leaves

SMALL_BYTES = 1 << 16  # Size below which an unroll is one string: a copy takes 5 us, a dozen buffers 100 us
INLINE_BYTES = 90_000  # Size of a result that Ray sends with the response to a call, not by way of its stores
MOST_PIECES = 90  # Pieces of a result that Ray sends with one response, which is limited to 10 MB
NEEDED = ("raylet", "gcs_server")  # Ray's processes without which a run cannot continue


def share_tensors() -> None:
    """Make Ray transfer tensors as numpy arrays: out-of-band buffers, read without a copy."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    ray.util.register_serializer(torch.Tensor, serializer=lambda x: x.detach().numpy(), deserializer=torch.from_numpy)


def stored_bytes() -> int | None:
    """Bytes in use in the object stores of all machines, as reported by Ray; None without a response in a second."""
    try:
        from ray._private import state
        from ray._private.internal_api import get_memory_info_reply

        # Use this connection's address: automatic discovery may return that of another Ray cluster that has ended.
        reply = get_memory_info_reply(state.state, timeout_seconds=1.0)
        return int(reply.store_stats.object_store_bytes_used)
    except Exception:  # if a later Ray changes this private function, training continues without this metric
        return None


def dead_part() -> str:
    """Name of a dead main process of this process's private Ray session; empty if none is dead or it has none."""
    node: Any = getattr(worker, "_global_node", None)
    dead = {str(name) for name, _ in node.dead_processes()} if node is not None else set[str]()
    return next((f"Ray's {name}" for name in NEEDED if name in dead), "")


def fetch(refs: "Sequence[ray.ObjectRef[Any]]", patience: float, timeout: float) -> list[Any]:
    """Return the value of each of `refs`, or the RayError of a lost one: all within `patience` seconds or, to attribute
    an error, one by one within `timeout` seconds each."""
    with suppress(RayError):
        return ray.get(list(refs), timeout=patience)
    values: list[Any] = []
    for ref in refs:
        try:
            values.append(ray.get(ref, timeout=timeout))
        except RayError as problem:
            values.append(problem)
    return values


def message_of(problem: RayError) -> str:
    """Text of a Ray exception, with the traceback in the other process if there is one."""
    return str(problem.cause) if isinstance(problem, RayTaskError) and not str(problem) else str(problem)


def pieces_of(size: int) -> int:
    return pieces if (pieces := -(-size // INLINE_BYTES)) <= MOST_PIECES else 1


def cut(content: bytes, pieces: int) -> Any:
    """Split bytes into this many pieces, the results of a call."""
    size = -(-len(content) // pieces)
    return content if pieces == 1 else [content[size * part : size * (part + 1)] for part in range(pieces)]


def pack(unroll: Any) -> Any:
    """Replace the tensors of a structure with arrays, which must not change until pickled; pickle a small structure."""
    nbytes = 0

    def as_array(value: Any) -> Any:
        nonlocal nbytes
        if not isinstance(value, Tensor):
            return value
        nbytes += value.nbytes
        return value.detach().cpu().contiguous().numpy()

    arrays = map_leaves(as_array, unroll)
    return pickle.dumps(arrays, protocol=5) if nbytes < SMALL_BYTES else arrays


def unpack(parcel: Any) -> Any:
    """Restore a packed structure, bit for bit; its tensors are read-only views of the parcel."""
    arrays = pickle.loads(parcel) if isinstance(parcel, bytes) else parcel
    return map_leaves(lambda value: torch.from_numpy(value) if isinstance(value, np.ndarray) else value, arrays)
