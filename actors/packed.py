"""Tensors packed into one buffer of bytes, so that they travel to a device in one copy."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..agents.values import flat

ALIGNED = 64
"""Bytes at whose multiples leaves begin."""


class Sent(NamedTuple):
    """Tensors on their way to a device."""

    leaves: list[Tensor]
    """Views of one buffer on the device, or tensors that were there already."""
    event: Any
    """Reached when the copy is complete; None on a device without streams."""


class Packer:
    """Copies CPU tensors to one device in one piece, from one buffer of pinned memory that is used again.

    Args:
        device: a device other than the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self._streams = device, stream_module(device)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._last: Any = None
        """The event of the last copy out of the buffer."""

    def send(self, leaves: Sequence[Tensor]) -> Sent:
        """Start copying on the current stream; waits for the copy before, if it is still under way.

        Leaves of other devices than the CPU stay where they are.
        """
        if self._last is not None:
            self._last.synchronize()
        begins, end = list[int](), 0
        for leaf in leaves:
            begins.append(end)
            end += -(-leaf.nbytes // ALIGNED) * ALIGNED if leaf.device.type == "cpu" else 0
        if len(self._buffer) < end:
            self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for leaf, begin in zip(leaves, begins, strict=True):
            if leaf.device.type == "cpu":
                _view(self._buffer, begin, leaf).copy_(leaf)
        there = self._buffer[:end].to(self.device, non_blocking=True)
        moved = [
            _view(there, begin, leaf) if leaf.device.type == "cpu" else leaf
            for leaf, begin in zip(leaves, begins, strict=True)
        ]
        self._last = record_event(self.device)
        return Sent(moved, self._last)


def fetch(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start copying a tensor to the CPU; the function returned waits for this copy and for nothing started later."""
    streams = stream_module(tensor.device)
    if streams is None:
        return lambda: tensor.cpu().numpy()
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    here.copy_(tensor, non_blocking=True)
    event = record_event(tensor.device)

    def wait() -> NDArray[Any]:
        event.synchronize()
        return here.numpy()

    return wait


def record_event(device: torch.device) -> Any:
    """An event that is reached when all work on the current stream is done; None on a device without streams."""
    streams = stream_module(device)
    return None if streams is None else streams.current_stream(device).record_event()


def weights_for(agent: nn.Module, device: torch.device | None) -> tuple[NDArray[np.float32] | Tensor, Any]:
    """All weights of an agent (`Weights.values`), and the event after which another stream may read them.

    For actors on the agent's device they stay there.
    """
    values = flat(agent)
    if values.device.type == "cpu" or values.device != device:
        return values.cpu().numpy(), None
    return values, record_event(values.device)


def take_over(tensors: Iterable[Tensor], event: Any, device: torch.device) -> None:
    """Let the current stream use tensors of another one after this event; their memory is not used again before that.

    Tensors of other devices and None for the event, on a device without streams, change nothing.
    """
    if event is None:
        return
    here = stream_module(device).current_stream(device)
    here.wait_event(event)
    for tensor in tensors:
        if tensor.device == device:
            tensor.record_stream(here)


def stream_module(device: torch.device) -> Any:
    """The module of a device's streams (torch.cuda); None for a device that has none."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    return module if hasattr(module, "Stream") else None


def _view(buffer: Tensor, begin: int, like: Tensor) -> Tensor:
    """The part of a buffer of bytes that a leaf takes, as a tensor of its type and shape."""
    return buffer[begin : begin + like.nbytes].view(like.dtype).view(like.shape)
