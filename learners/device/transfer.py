"""How a batch travels to the learner's device: in one copy, while the learner learns from the batch before it.

A copy begins when it is known what will be learned from next, on a stream of its own. Two pinned buffers take turns, so
that the next batch is packed while the last one may still be on its way.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...actors.packed import Packer, stream_module, take_over
from ...actors.unroll import Unroll, map_tensors, tensors, with_tensors


class _Sent(NamedTuple):
    """A batch on its way."""

    batch: Unroll
    """The batch as it was given."""
    arrived: Unroll
    """The same on the device."""
    indices: list[Tensor]
    """The indices that went with it, on the device."""
    event: Any
    """Reached when the copy is complete; None where copies are complete at once."""


class Transfer:
    """Batches to one device that is not the CPU.

    Args:
        device: where they go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._streams = device, stream_module(device)
        self._stream: Any = self._streams.Stream(device) if self._streams else None
        self._packers = [Packer(device), Packer(device)]
        self._sent: _Sent | None = None

    def send(self, batch: Unroll, indices: Sequence[Tensor]) -> None:
        """Start copying the batch that `receive` will request next, with int64 indices for it."""
        self._sent = self._send(batch, indices)

    def receive(self, batch: Unroll, indices: Sequence[Tensor]) -> tuple[Unroll, list[Tensor]]:
        """The batch and the indices on the device; the CPU does not wait for them."""
        sent = self._sent if self._sent is not None and self._sent.batch is batch else self._send(batch, indices)
        self._sent = None
        take_over((*tensors(sent.arrived), *sent.indices), sent.event, self._device)
        # An actor's tensors are on this device, or on another one.
        return map_tensors(lambda leaf: leaf.to(self._device, non_blocking=True), sent.arrived), sent.indices

    def _send(self, batch: Unroll, indices: Sequence[Tensor]) -> _Sent:
        self._packers.reverse()
        own = tensors(batch)
        with self._streams.stream(self._stream) if self._streams else nullcontext():
            moved, event = self._packers[0].send([*own, *indices])
        return _Sent(batch, with_tensors(batch, moved[: len(own)]), moved[len(own) :], event)
