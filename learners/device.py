"""Learning on an asynchronous device: transfer of batches, and updates that are recorded once and replayed.

A CUDA graph launches the thousands of small operations of an update in one call. It contains the addresses that they
read and write, so the batch is copied to the recorded address, and everything that an update changes (weights, moments,
counters) changes in place.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..actors.packed import Packer, map_tensors, stream_module, take_over, tensors, with_tensors
from ..actors.unroll import Unroll

WARM_UP = 3  # Updates before the recorded one, in which libraries choose their algorithms and allocate memory

Record: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Function that records work without running it; returns the replay function and the tensor of the result."""


def cuda_graph(device: torch.device) -> Record:
    """Return a function that records work as a CUDA graph. A graph contains the kernels of one device's stream, so that
    device is current while the graph is recorded and replayed. Other threads may use CUDA meanwhile."""

    def record(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = work()

        def replay() -> None:
            with torch.cuda.device(device):
                graph.replay()

        return replay, result

    return record


def changing(agent: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """List every tensor that an update of this agent changes."""
    moments = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return [*agent.parameters(), *agent.buffers(), *moments]


class _Recording(NamedTuple):
    replay: Callable[[], object]
    leaves: list[Tensor]  # Input buffers of the batch and its indices
    result: Tensor


class Recorded:
    """Update from a batch on the device and the indices of its minibatches that is recorded once, compared with a
    normal run of it, and then replayed. It returns metrics, and must not depend on values read back from the device.
    `changed` returns every tensor that an update changes."""

    def __init__(
        self,
        update: Callable[[Unroll, Sequence[Tensor]], Tensor],
        changed: Callable[[], Sequence[Tensor]],
        record: Record,
    ) -> None:
        self._update, self._changed, self._record = update, changed, record
        self.alone: AbstractContextManager[object] = contextlib.nullcontext()
        """Lock acquired while an update is recorded, since no other thread of the process may use the device."""
        self._works = True
        self.forget()

    def forget(self) -> None:
        """Discard the recording, after tensors or settings of the update have changed."""
        self._recording: _Recording | None = None
        self._form: object = None
        self._calls = 0

    def __call__(self, batch: Unroll, indices: Sequence[Tensor]) -> Tensor:
        leaves = [*tensors(batch), *indices]
        form = [(leaf.shape, leaf.dtype) for leaf in leaves]
        if form != self._form:
            self.forget()
            self._form = form
        self._calls += 1
        if self._calls <= WARM_UP or not self._works:
            return self._update(batch, indices)
        if self._recording is None:
            return self._first(batch, indices, leaves)
        for target, leaf in zip(self._recording.leaves, leaves, strict=True):
            target.copy_(leaf)
        self._recording.replay()
        return self._recording.result.clone()

    def _first(self, batch: Unroll, indices: Sequence[Tensor], leaves: list[Tensor]) -> Tensor:
        """Record and replay the update, undo it, run the update itself and compare results; waits for the device."""
        changed, problem = [x.detach() for x in self._changed()], ""
        before = after = [x.clone() for x in changed]
        inputs, count = [leaf.clone() for leaf in leaves], len(leaves) - len(indices)
        fixed, replayed = with_tensors(batch, inputs[:count]), None
        try:
            with self.alone:
                replay, result = self._record(lambda: self._update(fixed, inputs[count:]))
            replay()
            self._recording = _Recording(replay, inputs, result)
            replayed, after = result.clone(), [x.clone() for x in changed]
        except Exception as error:  # recording may raise any exception
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        for x, old in zip(changed, before, strict=True):
            x.copy_(old)
        result = self._update(batch, indices)
        if replayed is not None and not (_alike(replayed, result) and _near(before, after, changed)):
            problem = "its replay differs from the update itself"
        if problem:
            self._works, self._recording = False, None
            print(f"engram: the update is not recorded; it runs one operation at a time: {problem}", file=sys.stderr)
        return result


def _alike(replayed: Tensor, expected: Tensor) -> bool:
    """Whether metrics are equal up to the order of float sums."""
    return torch.allclose(replayed.cpu(), expected.cpu(), rtol=1e-2, atol=1e-5, equal_nan=True)


def _near(before: Sequence[Tensor], replayed: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether tensors were changed as expected. An error of half the change is allowed: Adam's first steps have full
    length even if the gradient is only rounding error."""
    change, error = (
        sum(float((a - b).double().square().sum()) for a, b in zip(pair, expected, strict=True))
        for pair in (before, replayed)
    )
    return error <= 0.25 * change


class _Sent(NamedTuple):
    batch: Unroll  # Batch before the copy
    arrived: Unroll  # Batch on the device
    indices: list[Tensor]  # Indices of its minibatches on the device
    event: Any  # Completes with the copy; None if copies are synchronous


class Transfer:
    """Transfer of batches to one device other than the CPU, in one copy each, on a separate stream, while the learner
    uses the previous batch. Two pinned buffers alternate, so one can be packed while the other is being copied."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._streams = device, stream_module(device)
        self._stream: Any = self._streams.Stream(device) if self._streams else None
        self._packers = [Packer(device), Packer(device)]
        self._sent: _Sent | None = None

    def send(self, batch: Unroll, indices: Sequence[Tensor]) -> None:
        """Start copying the batch that `receive` will request next, with int64 indices for it."""
        self._packers.reverse()
        leaves = tensors(batch)
        with self._streams.stream(self._stream) if self._streams else contextlib.nullcontext():
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
