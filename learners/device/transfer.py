"""Transfer of a batch to the learner's device in one copy, while the learner uses the previous batch.

A copy starts on a separate stream as soon as the next batch is known. Two pinned buffers alternate, so
that a batch can be packed while the previous one is still being copied.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...actors.packed import Packer, stream_module, take_over
from ...actors.unroll import Unroll, map_tensors, tensors, with_tensors


class _Sent(NamedTuple):
    """Batch being copied."""

    batch: Unroll  # Batch before the copy
    arrived: Unroll  # Batch on the device
    indices: list[Tensor]  # Indices of its minibatches on the device
    event: Any  # Completes with the copy; None if copies are synchronous


class Transfer:
    """Transfer of batches to one device other than the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._streams = device, stream_module(device)
        self._stream: Any = self._streams.Stream(device) if self._streams else None
        self._packers = [Packer(device), Packer(device)]
        self._sent: _Sent | None = None

    def send(self, batch: Unroll, indices: Sequence[Tensor]) -> None:
        """Start copying the batch that `receive` will request next, with int64 indices for it."""
        self._packers.reverse()
        leaves = tensors(batch)
        with self._streams.stream(self._stream) if self._streams else nullcontext():
            moved, event = self._packers[0].send([*leaves, *indices])
        self._sent = _Sent(batch, with_tensors(batch, moved[: len(leaves)]), moved[len(leaves) :], event)

    def receive(self, batch: Unroll, indices: Sequence[Tensor]) -> tuple[Unroll, list[Tensor]]:
        """Return the batch and the indices on the device; the CPU does not wait for them."""
        if self._sent is None or self._sent.batch is not batch:
            self.send(batch, indices)
        sent, self._sent = self._sent, None
        assert sent is not None
        take_over((*tensors(sent.arrived), *sent.indices), sent.event, self._device)
        # Tensors from an actor may already be on this device, or on another one.
        return map_tensors(lambda leaf: leaf.to(self._device, non_blocking=True), sent.arrived), sent.indices
