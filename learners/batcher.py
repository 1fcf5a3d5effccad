"""Batches for the learner from the unrolls of actors, which have a different number of environments."""

from collections import deque
from collections.abc import Callable

from ..actors.unroll import Unroll, join, some_environments


class Batcher:
    """Split and join unrolls along the batch axis into batches of `batch_size`; every environment is used exactly once.
    Unrolls of different members of a population never mix: use one batcher per member."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._parts: deque[Unroll] = deque()
        self._waiting = 0

    def add(self, unroll: Unroll) -> None:
        """Append the environments of an unroll to the queue."""
        self._parts.append(unroll)
        self._waiting += len(unroll.weights_version)

    @property
    def complete(self) -> bool:
        """Whether there are enough environments for a batch."""
        return self._waiting >= self.batch_size

    def take(self) -> Unroll | None:
        """Remove and return the oldest `batch_size` environments, or None while there are fewer."""
        if not self.complete:
            return None
        taken: list[Unroll] = []
        missing = self.batch_size
        while missing:
            part = self._parts.popleft()
            width = len(part.weights_version)
            if width > missing:
                self._parts.appendleft(some_environments(part, slice(missing, width)))
                part = some_environments(part, slice(0, missing))
            taken.append(part)
            missing -= min(width, missing)
        self._waiting -= self.batch_size
        return join(taken)

    def next(self, pull: Callable[[], Unroll | None]) -> Unroll | None:
        """Return the next batch, pulling unrolls as needed; None if none arrived, while received ones stay queued."""
        while (batch := self.take()) is None:
            unroll = pull()
            if unroll is None:
                return None
            self.add(unroll)
        return batch
