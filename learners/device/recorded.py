"""An update that is recorded once and replayed, so that the processor starts it with one call.

A recurrent core's update is thousands of small operations; starting them one by one takes a GPU's processor longer than
the GPU computes. A CUDA graph holds them all with the addresses that they read and write. So the batch is copied to
where the recorded one lay, and whatever an update changes (weights, moments, counters) is changed in place.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...actors.unroll import Unroll, tensors, with_tensors

WARM_UP = 3
"""Updates before the one that is recorded: libraries choose their methods and take their memory then."""

Update: TypeAlias = Callable[[Unroll, Sequence[Tensor]], Tensor]
"""One whole update from a batch on the device and the indices of its minibatches; returns its metrics."""

Record: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records work without doing it: what replays it, and the tensor that the result will be in."""


def cuda_graph(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record work as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = work()
    return graph.replay, result


class _Recording(NamedTuple):
    replay: Callable[[], object]
    leaves: list[Tensor]
    """Where the batch and its indices are read from."""
    result: Tensor


class Recorded:
    """Stands for an update.

    Args:
        update: the update itself; it must not depend on numbers that are read back.
        record: how it is recorded.
    """

    def __init__(self, update: Update, record: Record = cuda_graph) -> None:
        self._update, self._record = update, record
        self.works = True
        """Whether recording has not failed."""
        self.forget()

    def forget(self) -> None:
        """Record anew: tensors that the update changes, or settings that it was recorded with, are others now."""
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
        if self._calls <= WARM_UP or not self.works:
            return self._update(batch, indices)
        if self._recording is None:
            self._recording = self._make(batch, leaves)
            if self._recording is None:
                return self._update(batch, indices)
        for place, leaf in zip(self._recording.leaves, leaves, strict=True):
            place.copy_(leaf)
        self._recording.replay()
        return self._recording.result.clone()

    def _make(self, batch: Unroll, leaves: list[Tensor]) -> _Recording | None:
        places = [leaf.clone() for leaf in leaves]
        count = len(tensors(batch))
        fixed, indices = with_tensors(batch, places[:count]), places[count:]
        try:
            replay, result = self._record(lambda: self._update(fixed, indices))
        except Exception as problem:  # recording may fail in any way, and nothing is done while it does
            self.works = False
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
            print(
                f"engram: the update is not recorded, its operations start one by one: {reason}",
                file=sys.stderr,
                flush=True,
            )
            return None
        return _Recording(replay, places, result)
