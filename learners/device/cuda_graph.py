"""An update that is recorded once and replayed, so that the processor starts it with one call.

A recurrent core's update is thousands of small operations; starting them one by one takes a GPU's processor longer than
the GPU computes. A CUDA graph holds them all with the addresses that they read and write. So the batch is copied to
where the recorded one lay, and whatever an update changes (weights, moments, counters) is changed in place.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ...actors.unroll import Unroll, tensors, with_tensors

WARM_UP = 3
"""Updates before the one that is recorded: libraries choose their methods and take their memory then."""

Update: TypeAlias = Callable[[Unroll, Sequence[Tensor]], Tensor]
"""One whole update from a batch on the device and the indices of its minibatches; returns its metrics."""

Record: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records work without doing it: what replays it, and the tensor that the result will be in."""


def cuda_graph(device: torch.device) -> Record:
    """Returns a function that records work on this device as a CUDA graph.

    A graph contains the kernels of one device's stream, so the device is the current one while the graph is recorded
    and replayed. Other threads may call CUDA during the capture; what they start is not part of it.
    """

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
    """Every tensor that an update of this agent changes."""
    moments = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return [*agent.parameters(), *agent.buffers(), *moments]


class _Recording(NamedTuple):
    replay: Callable[[], object]
    leaves: list[Tensor]
    """Where the batch and its indices are read from."""
    result: Tensor


class Recorded:
    """Records an update once, checks the recording against the update itself, and replays it from then on.

    Args:
        update: the update; it must not depend on values that are read back.
        changed: returns every tensor that an update changes.
        record: records work; see `cuda_graph`.
    """

    def __init__(self, update: Update, changed: Callable[[], Sequence[Tensor]], record: Record) -> None:
        self._update, self._changed, self._record = update, changed, record
        self.alone: AbstractContextManager[object] = contextlib.nullcontext()
        """Held while an update is recorded: no other thread of the process may use the device."""
        self._works = True
        self.forget()

    def forget(self) -> None:
        """Record again: the update changes other tensors or has other settings."""
        self._recording: _Recording | None = None
        self._form: object = None
        self._calls = 0

    def __call__(self, batch: Unroll, indices: Sequence[Tensor]) -> Tensor:
        """Do the update; returns its metrics."""
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
        for place, leaf in zip(self._recording.leaves, leaves, strict=True):
            place.copy_(leaf)
        self._recording.replay()
        return self._recording.result.clone()

    def _first(self, batch: Unroll, indices: Sequence[Tensor], leaves: list[Tensor]) -> Tensor:
        """Record the update and replay it; undo the replay, do the update itself and compare; waits for the device."""
        changed, problem = [x.detach() for x in self._changed()], ""
        before = [x.clone() for x in changed]
        try:
            with self.alone:
                recording = self._make(batch, leaves)
            recording.replay()
            replayed, after = recording.result.clone(), [x.clone() for x in changed]
        except Exception as error:  # recording may fail in any way
            recording, replayed, after = None, None, before
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        for x, old in zip(changed, before, strict=True):
            x.copy_(old)
        result = self._update(batch, indices)
        if replayed is not None and not (_alike(replayed, result) and _near(before, after, changed)):
            recording, problem = None, "its replay differs from the update itself"
        if problem:
            self._works = False
            print(
                f"engram: the update is not recorded, its operations start one by one: {problem}",
                file=sys.stderr,
                flush=True,
            )
        self._recording = recording
        return result

    def _make(self, batch: Unroll, leaves: list[Tensor]) -> _Recording:
        places = [leaf.clone() for leaf in leaves]
        count = len(tensors(batch))
        fixed, indices = with_tensors(batch, places[:count]), places[count:]
        replay, result = self._record(lambda: self._update(fixed, indices))
        return _Recording(replay, places, result)


def _alike(found: Tensor, wanted: Tensor) -> bool:
    """Whether metrics are equal but for the order of float sums."""
    return torch.allclose(found.cpu(), wanted.cpu(), rtol=1e-2, atol=1e-5, equal_nan=True)


def _near(before: Sequence[Tensor], found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether tensors were changed as they should be.

    Half of the change is allowed: Adam's first steps have the full length where the gradient is rounding alone.
    """
    change, error = (
        sum(float((a - b).double().square().sum()) for a, b in zip(pair, wanted, strict=True))
        for pair in (before, found)
    )
    return error <= 0.25 * change
