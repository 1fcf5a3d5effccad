"""How a batch travels to the learner's device: all of it in one copy, while the batch before it is learnt from.

The leaves of a batch are laid into one buffer of page-locked memory, which the device reads by itself; there they are
views of one buffer. A copy begins when it is known what will be learnt from next, on a stream of its own. Two buffers
take turns, so that the next batch is laid out while the last one may still be on its way.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...actors.unroll import Unroll, map_tensors, tensors, with_tensors

ALIGNED = 64
"""Bytes at whose multiples leaves begin."""


class Sent(NamedTuple):
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
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers: list[Tensor | None] = [None, None]
        self._last: list[Any] = [None, None]
        """The event of the last copy out of each buffer."""
        self._turn = 0
        self._sent: Sent | None = None

    def send(self, batch: Unroll, indices: Sequence[Tensor]) -> None:
        """Let a batch set out, which `receive` will ask for next, with int64 indices for it."""
        self._sent = self._send(batch, indices)

    def receive(self, batch: Unroll, indices: Sequence[Tensor]) -> tuple[Unroll, list[Tensor]]:
        """The batch and the indices on the device; the processor does not wait for them."""
        sent = self._sent if self._sent is not None and self._sent.batch is batch else self._send(batch, indices)
        self._sent = None
        if sent.event is not None:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(sent.event)
            # The memory belongs to the copying stream, which may not use it again before this one is done with it.
            map_tensors(lambda leaf: leaf.record_stream(here) or leaf, sent.arrived)
        return sent.arrived, sent.indices

    def _send(self, batch: Unroll, indices: Sequence[Tensor]) -> Sent:
        own = tensors(batch)
        leaves = [*own, *indices]
        begins, end = list[int](), 0
        for leaf in leaves:  # those that were made on the device stay where they are
            begins.append(end)
            end += -(-leaf.nbytes // ALIGNED) * ALIGNED if leaf.device.type == "cpu" else 0
        buffer = self._buffer(end)
        for leaf, begin in zip(leaves, begins, strict=True):
            if leaf.device.type == "cpu":
                _view(buffer, begin, leaf).copy_(leaf)
        there, event = self._copy(buffer)
        moved = [
            _view(there, begin, leaf) if leaf.device.type == "cpu" else leaf
            for leaf, begin in zip(leaves, begins, strict=True)
        ]
        return Sent(batch, with_tensors(batch, moved[: len(own)]), moved[len(own) :], event)

    def _buffer(self, size: int) -> Tensor:
        """The buffer whose turn it is, as soon as its last copy is complete."""
        self._turn = 1 - self._turn
        if self._last[self._turn] is not None:
            self._last[self._turn].synchronize()
        buffer = self._buffers[self._turn]
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._stream is not None)
            self._buffers[self._turn] = buffer
        return buffer[:size]

    def _copy(self, buffer: Tensor) -> tuple[Tensor, Any]:
        if self._stream is None:
            return buffer.to(self.device), None
        with torch.cuda.stream(self._stream):
            there = buffer.to(self.device, non_blocking=True)
            event = self._last[self._turn] = self._stream.record_event()
        return there, event


def _view(buffer: Tensor, begin: int, like: Tensor) -> Tensor:
    """The part of a buffer of bytes that a leaf takes, as a tensor of its type and shape."""
    return buffer[begin : begin + like.nbytes].view(like.dtype).view(like.shape)
