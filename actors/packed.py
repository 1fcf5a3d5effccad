"""The tensors of unrolls, and tensors packed into one buffer of bytes, so that one copy transfers them to a device."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..agents.values import flat
from .unroll import Unroll, map_axes

ALIGNED = 64  # Alignment of leaves in bytes


class Packer:
    """Copier of CPU tensors to one other device in a single transfer, through a reused buffer of pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._last: Any = None  # Event of the last copy out of the buffer

    def send(self, leaves: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Start copying on the current stream, after waiting for a previous copy in progress. Leaves that are not on
        the CPU are not copied. Returns the tensors, and the event that completes with the copy."""
        if self._last is not None:
            self._last.synchronize()
        begins, end = dict[int, int](), 0  # Position in the buffer of each leaf on the CPU
        for i, leaf in enumerate(leaves):
            if leaf.device.type == "cpu":
                begins[i], end = end, end + -(-leaf.nbytes // ALIGNED) * ALIGNED
        if len(self._buffer) < end:
            self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for i, begin in begins.items():
            _view(self._buffer, begin, leaves[i]).copy_(leaves[i])
        on_device = self._buffer[:end].to(self.device, non_blocking=True)
        moved = [_view(on_device, begins[i], leaf) if i in begins else leaf for i, leaf in enumerate(leaves)]
        self._last = record_event(self.device)
        return moved, self._last


def fetch(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start copying a tensor to the CPU; the returned function waits only for this copy, not for later work."""
    if stream_module(tensor.device) is None:
        return lambda: tensor.cpu().numpy()
    on_cpu = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    on_cpu.copy_(tensor, non_blocking=True)
    event = record_event(tensor.device)

    def wait() -> NDArray[Any]:
        event.synchronize()
        return on_cpu.numpy()

    return wait


def record_event(device: torch.device) -> Any:
    """Record an event that completes with all work on the current stream; None on a device without streams."""
    streams = stream_module(device)
    return None if streams is None else streams.current_stream(device).record_event()


def weights_for(agent: nn.Module, device: torch.device | None) -> tuple[NDArray[np.float32] | Tensor, Any]:
    """Return all weights of an agent (`Weights.values`), on the CPU unless actors use the agent's device (`device`),
    and the event after which another stream may read them."""
    values = flat(agent)
    if values.device.type == "cpu" or values.device != device:
        return values.cpu().numpy(), None
    return values, record_event(values.device)


def take_over(tensors: Iterable[Tensor], event: Any, device: torch.device) -> None:
    """Let the current stream use another stream's tensors on `device` after `event` (None on a device without streams);
    until that use ends, their memory is kept."""
    if event is not None:
        current = stream_module(device).current_stream(device)
        current.wait_event(event)
        for tensor in tensors:
            if tensor.device == device:
                tensor.record_stream(current)


def stream_module(device: torch.device) -> Any:
    """Module of a device's streams (torch.cuda); None for a device that has none."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    return module if hasattr(module, "Stream") else None


def _view(buffer: Tensor, begin: int, like: Tensor) -> Tensor:
    return buffer[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def map_tensors(function: Callable[[Tensor], Tensor], unroll: Unroll) -> Unroll:
    return map_axes(lambda _, x: function(x), unroll)


def tensors(unroll: Unroll) -> list[Tensor]:
    """List every tensor that a learner reads, in a fixed order."""
    leaves: list[Tensor] = []
    map_tensors(lambda leaf: leaves.append(leaf) or leaf, unroll)
    return leaves


def with_tensors(unroll: Unroll, others: Iterable[Tensor]) -> Unroll:
    """Replace the `tensors` of an unroll by others."""
    rest = iter(others)
    return map_tensors(lambda _: next(rest), unroll)


def nbytes(unroll: Unroll) -> int:
    return unroll.episodes.nbytes + sum(leaf.nbytes for leaf in tensors(unroll))


def header(unroll: Unroll) -> Unroll:
    return unroll._replace(initial_state=None, env=None, agent=None)  # pyright: ignore[reportArgumentType]
