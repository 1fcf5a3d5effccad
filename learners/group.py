"""Learners of one agent: each has a share of every batch; gradients and statistics of the batch are summed.

N learners with B/N environments each are therefore equivalent to one learner with B, up to the order of sums. All
learners call the same methods in the same order and get the same results, bit for bit.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import AllToAllOptions, ProcessGroupGloo
from torch.nn.functional import pad

from .batches import Group

NO_LIMIT = timedelta(hours=1)
"""Timeout of an exchange, longer than any takes; it ends the threads of an exchange with an unreachable learner."""
SHORT = 4096  # Largest (number of learners) x (number of values) for which every learner sums the complete tensor
LOOK_SECONDS = 1.0  # Interval in seconds at which a waiting learner checks whether to continue waiting


class LearnerLossError(RuntimeError):
    """Raised when learners fail repeatedly or have different weights."""


class GroupLostError(LearnerLossError):
    """Raised when another learner did not take part in an exchange: it is dead, hangs, or is unreachable."""


class Share(NamedTuple):
    """One learner's share of the actors and of a batch."""

    first_actor: int
    actors: int
    environments: int


def deal(learners: int, actors: int, environments: int | None, envs_per_actor: int) -> list[Share]:
    """Split actors and environments among learners, as equally as possible. `environments` is the batch size; None if a
    batch is one unroll from every actor."""
    shares: list[Share] = []
    for rank in range(learners):
        count = actors // learners + (rank < actors % learners)
        width = count * envs_per_actor
        if environments is not None:
            width = environments // learners + (rank < environments % learners)
        shares.append(Share(sum(share.actors for share in shares), count, width))
    return shares


class SharedGroup(Group):
    """Group of learners in several processes; a subclass connects them. `widths` are the environments of each learner's
    share, `device` that of exchanged tensors. An exception from `keep_waiting` ends a wait for others."""

    def __init__(
        self, rank: int, widths: Sequence[int], device: torch.device, keep_waiting: Callable[[], None]
    ) -> None:
        self.rank, self.size, self.first = rank, len(widths), sum(widths[:rank])
        self._all, self._device, self._keep_waiting = sum(widths), device, keep_waiting
        self._backend: Any = None  # process group of torch.distributed
        self._work: Any = None  # newest exchange

    def _is_done(self, work: Any) -> bool:
        """Return whether an exchange is done, after at most LOOK_SECONDS. Raises RuntimeError if it failed."""
        raise NotImplementedError

    def all_environments(self, width: int) -> int:
        return self._all

    def total(self, *parts: Any) -> Sequence[Any]:
        full = [torch.as_tensor(part, dtype=torch.float64).to(self._device) for part in parts]
        return [
            x.to(part) if isinstance(part, Tensor) else float(x)
            for part, x in zip(parts, self._sum_parts(full), strict=True)
        ]

    def reduce(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor, cause: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor, Tensor]:
        present = torch.tensor([float(x is not None) for x in gradients])
        full = [torch.zeros_like(p) if x is None else x for p, x in zip(parameters, gradients, strict=True)]
        causes = torch.zeros(self.size).to(metrics)
        causes[self.rank] = cause
        *sums, present, metrics, causes = self._sum_parts([*full, present.to(metrics), metrics, causes])
        exist = present.cpu().tolist()
        return [x if exists else None for x, exists in zip(sums, exist, strict=True)], metrics, causes.min()

    def _sum_parts(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over all learners, in one exchange."""
        flat = self._sum(torch.cat([part.detach().reshape(-1) for part in parts]).to(self._device))
        split = flat.split([part.numel() for part in parts])
        return [x.to(part.device).view(part.shape) for part, x in zip(parts, split, strict=True)]

    def _sum(self, flat: Tensor) -> Tensor:
        """Add the tensors [K] of all learners in rank order, so that results are bit-identical on all of them. All send
        to all at once, so link latency counts once or twice for any N, not 2 (N - 1) times as in a ring. With three or
        more learners, each sums 1/N of a long tensor and sends the result to the others."""
        if self.size == 2:
            return self._swap(flat, [len(flat) * (rank != self.rank) for rank in range(2)]).add_(flat)
        short = self.size * len(flat) <= SHORT
        sent = flat.repeat(self.size) if short else pad(flat, (0, -len(flat) % self.size))
        total = functools.reduce(torch.add, self._swap(sent).chunk(self.size))
        return total if short else self._swap(total.repeat(self.size))[: len(flat)]

    def _swap(self, sent: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """Send part n of N to learner n (without `sizes`, the parts are equal); return the received parts, of the same
        sizes, in rank order."""
        received, options, sizes = torch.empty_like(sent), AllToAllOptions(), list(sizes)
        options.timeout = NO_LIMIT
        try:
            self._work = work = self._backend.alltoall_base(received, sent, sizes, sizes, options)
            while not self._is_done(work):
                self._keep_waiting()
        except GroupLostError:
            raise
        except RuntimeError as problem:
            raise GroupLostError(str(problem).splitlines()[0]) from problem
        return received


class GlooGroup(SharedGroup):
    """Group of learners connected by torch.distributed's Gloo, which exchanges tensors on the CPU. `store` (a
    torch.distributed.Store) is for the rendezvous, `address` is that of the network interface."""

    def __init__(
        self,
        store: Any,
        rank: int,
        widths: Sequence[int],
        address: str = "127.0.0.1",
        keep_waiting: Callable[[], None] = lambda: None,
        connect_seconds: float = 60.0,
    ) -> None:
        super().__init__(rank, widths, torch.device("cpu"), keep_waiting)
        options: Any = ProcessGroupGloo._Options()  # pyright: ignore
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=connect_seconds)
        self._backend = ProcessGroupGloo(store, rank, self.size, options)

    def close(self) -> None:
        # The destructor joins the threads of an exchange, which may never end: a broken link does not even report
        # the end of the other process. An abandoned exchange therefore keeps its process group.
        if self._work is not None and not self._work.is_completed():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))
        self._backend = self._work = None

    def _is_done(self, work: Any) -> bool:
        try:
            return work.wait(timedelta(seconds=LOOK_SECONDS))
        except RuntimeError:
            if work.is_completed():
                raise
            return False
