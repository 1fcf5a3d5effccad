"""The learners of one agent: each has a share of every batch, and whatever is a statistic of the batch is summed.

N learners with B/N environments each therefore equal one learner with B, up to the order of sums. All of them call the
same methods in the same order; what each gets back is the same, bit for bit.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import AllToAllOptions, ProcessGroupGloo
from torch.nn.functional import pad

from ..agents.agent import Agent
from ..agents.normalization import share_sums

NO_LIMIT = timedelta(hours=1)
"""Longer than any exchange takes; its threads end then, where another learner cannot be reached."""
SHORT = 4096
"""Values sent by one learner up to which everyone combines all of a tensor."""
LOOK_SECONDS = 1.0
"""How often a learner that waits for another looks whether it shall go on waiting."""


class LearnerLossError(RuntimeError):
    """Learners fail again and again, or have different weights; the message tells which."""


class GroupLostError(LearnerLossError):
    """Another learner did not take part in an exchange: it is dead, hangs, or cannot be reached."""


class Share(NamedTuple):
    """A learner's part of the actors and of a batch."""

    first_actor: int
    actors: int
    environments: int


def deal(learners: int, actors: int, environments: int | None, envs_per_actor: int) -> list[Share]:
    """The shares of learners in order, as equal as can be.

    `environments` are those of a batch; None where it is one unroll of every actor.
    """
    shares: list[Share] = []
    for rank in range(learners):
        own = actors // learners + (rank < actors % learners)
        width = own * envs_per_actor
        if environments is not None:
            width = environments // learners + (rank < environments % learners)
        shares.append(Share(sum(share.actors for share in shares), own, width))
    return shares


class Group:
    """A learner alone: its share is the whole batch, and nothing is exchanged."""

    rank, size, first = 0, 1, 0
    """`first`: how many environments the learners before this one have."""

    def __deepcopy__(self, _: object) -> "Group":
        return self

    def all_environments(self, own: int) -> int:
        """Environments of the batch of all learners, of which this one has `own`."""
        return own

    def share(self, chosen: Tensor, own: int) -> Tensor:
        """Of chosen environments of the whole batch (int64 [K]) this learner's, counted from its first."""
        return chosen[(self.first <= chosen) & (chosen < self.first + own)] - self.first

    def total(self, *parts: Any) -> Sequence[Any]:
        """Tensors and floats, each summed over all learners; equal shapes everywhere."""
        return parts

    def least(self, value: Tensor) -> Tensor:
        """The least of all learners' scalars."""
        return value

    def reduce(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        """Gradients of the parameters, None where no learner has one, and metrics [M], summed in one exchange."""
        return gradients, metrics

    def close(self) -> None:
        """Leave the group, also while an exchange waits for a learner that is lost."""

    def share_sums(self, agent: Agent) -> None:
        """Let the running statistics of an agent count what all learners show them."""
        share_sums(agent, self.total)


class GlooGroup(Group):
    """Learners in several processes, connected by torch.distributed's Gloo.

    Args:
        store: a torch.distributed.Store in which they find each other.
        rank: this one's number.
        widths: environments of each learner's share, in order.
        address: of the network interface to be reached at.
        keep_waiting: called now and then while others are waited for; what it raises ends the wait.
        connect_seconds: in which learners must connect; the time in which they find each other is the store's, if it
            has its own limit.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        widths: Sequence[int],
        address: str = "127.0.0.1",
        keep_waiting: Callable[[], None] = lambda: None,
        connect_seconds: float = 60.0,
    ) -> None:
        self.rank, self.size, self.first = rank, len(widths), sum(widths[:rank])
        self._all, self._keep_waiting = sum(widths), keep_waiting
        options: Any = ProcessGroupGloo._Options()  # pyright: ignore
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=connect_seconds)
        self._work: Any = None
        """The newest exchange."""
        self._gloo: Any = ProcessGroupGloo(store, rank, self.size, options)

    def all_environments(self, own: int) -> int:
        return self._all

    def close(self) -> None:
        # The destructor joins the threads of an exchange, which may never end: across a cut link nothing arrives, not
        # even the end of the other process. So an exchange that was given up keeps its process group for good.
        if self._work is not None and not self._work.is_completed():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))
        self._gloo = self._work = None

    def total(self, *parts: Any) -> Sequence[Any]:
        flat = torch.cat([torch.as_tensor(part, dtype=torch.float64).reshape(-1).cpu() for part in parts])
        flat = self._exchange(flat, torch.add)
        sums: list[Any] = []
        for part, own in zip(parts, flat.split([math.prod(getattr(part, "shape", ())) for part in parts]), strict=True):
            sums.append(own.to(part).view(part.shape) if isinstance(part, Tensor) else float(own))
        return sums

    def least(self, value: Tensor) -> Tensor:
        return self._exchange(value.reshape(1).cpu(), torch.minimum)[0].to(value.device)

    def reduce(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        present = torch.tensor([float(each is not None) for each in gradients])
        full = [torch.zeros_like(p) if each is None else each for p, each in zip(parameters, gradients, strict=True)]
        parts = [*full, present.to(metrics), metrics]
        flat = torch.cat([part.detach().reshape(-1) for part in parts]).cpu()
        flat = self._exchange(flat, torch.add)
        *sums, present, metrics = (
            own.to(part.device).view(part.shape)
            for part, own in zip(parts, flat.split([part.numel() for part in parts]), strict=True)
        )
        return [each if there else None for each, there in zip(sums, present.tolist(), strict=True)], metrics

    def _exchange(self, flat: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The tensors [K] of all learners combined in order of ranks: the same bits everywhere.

        Everyone sends to all others at once, so the latency of a link counts once or twice for any N; in a ring it
        would count 2 (N - 1) times. Of a long tensor every learner combines 1/N and sends it to the others.
        """
        short = self.size * flat.numel() <= SHORT
        sent = flat.repeat(self.size) if short else pad(flat, (0, -flat.numel() % self.size))
        combined = functools.reduce(combine, self._swap(sent).chunk(self.size))
        return combined if short else self._swap(combined.repeat(self.size))[: flat.numel()]

    def _swap(self, sent: Tensor) -> Tensor:
        """Of N equal parts send part n to learner n; the parts that arrive, in order of ranks."""
        received, options = torch.empty_like(sent), AllToAllOptions()
        options.timeout = NO_LIMIT
        try:
            self._work = self._gloo.alltoall_base(received, sent, [], [], options)
            while not _is_done(self._work):
                self._keep_waiting()
        except GroupLostError:
            raise
        except RuntimeError as problem:
            raise GroupLostError(str(problem).splitlines()[0]) from problem
        return received


def _is_done(work: Any) -> bool:
    """Wait for LOOK_SECONDS at most; raises RuntimeError if the exchange failed."""
    try:
        return work.wait(timedelta(seconds=LOOK_SECONDS))
    except RuntimeError:
        if work.is_completed():
            raise
        return False
