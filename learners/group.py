"""Learners of one agent: each has a share of every batch; gradients and statistics of the batch are summed.

All learners call the same methods in the same order and get the same results, bit for bit: those of one learner with
the full batch, up to the order of sums.
"""

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import AllToAllOptions, ProcessGroupGloo
from torch.nn.functional import pad

from ..base.processes import environment, interface
from .batches import Group

NO_LIMIT = timedelta(hours=1)  # Timeout of an exchange; it ends the threads of one with an unreachable learner
SHORT = 4096  # Largest (number of learners) x (number of values) for which every learner sums the complete tensor
LOOK_SECONDS = 1.0  # Interval in seconds at which a waiting learner checks whether to continue waiting
POLL_SECONDS = 2e-4  # Seconds between two checks of an exchange, which also waits for the gradient
ABORT_SECONDS = 10.0  # Seconds within which an abandoned exchange must leave the GPU


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

    def split(total: int) -> list[int]:
        return [total // learners + (rank < total % learners) for rank in range(learners)]

    counts = split(actors)
    widths = [count * envs_per_actor for count in counts] if environments is None else split(environments)
    return [Share(sum(counts[:rank]), count, widths[rank]) for rank, count in enumerate(counts)]


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
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], metrics: Tensor
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        present = torch.tensor([float(x is not None) for x in gradients])
        full = [torch.zeros_like(p) if x is None else x for p, x in zip(parameters, gradients, strict=True)]
        *sums, present, metrics = self._sum_parts([*full, present.to(metrics), metrics])
        return [x if exists else None for x, exists in zip(sums, present.cpu().tolist(), strict=True)], metrics

    def _sum_parts(self, parts: Sequence[Tensor]) -> list[Tensor]:
        flat = self._sum(torch.cat([part.detach().reshape(-1) for part in parts]).to(self._device))
        split = flat.split([part.numel() for part in parts])
        return [x.to(part.device).view(part.shape) for part, x in zip(parts, split, strict=True)]

    def _sum(self, flat: Tensor) -> Tensor:
        """Add the tensors [K] of all learners in rank order, so that all get the same bits. All send to all at once, so
        link latency counts once or twice for any N, not 2 (N - 1) times as in a ring. With three or more learners, each
        sums 1/N of a long tensor and sends the result to the others."""
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


def nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a process group that uses NCCL; `timeout` limits its `abort`."""
    from torch.distributed import ProcessGroupNCCL  # missing in builds of torch without CUDA

    options: Any = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


class NcclGroup(SharedGroup):
    """Group of learners with one GPU each; arguments as for GlooGroup, but `store` is read in another thread. Raises
    GroupLostError if the learners do not connect within `connect_seconds`.

    NCCL never returns by itself when a learner is lost. The first exchange creates the communicator and waits for all
    learners without a timeout, so it runs in a thread. Later exchanges are asynchronous and are polled. Their kernels
    occupy the GPU until the communicator is aborted, which `close` does.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        widths: Sequence[int],
        device: torch.device,
        address: str = "127.0.0.1",
        keep_waiting: Callable[[], None] = lambda: None,
        connect_seconds: float = 60.0,
        make_backend: Callable[[Any, int, int, timedelta], Any] = nccl,
    ) -> None:
        super().__init__(rank, widths, device, lambda: None)
        self._store = store  # otherwise the Python object would be deleted before the first exchange
        # Torch's watchdog would end the process at the first failure; this setting disables it.
        with environment(TORCH_NCCL_BLOCKING_WAIT="1", NCCL_SOCKET_IFNAME=interface(address)):
            self._backend = make_backend(store, rank, self.size, timedelta(seconds=ABORT_SECONDS))
            try:
                self._connect(keep_waiting, connect_seconds)
            except BaseException:
                self.close()
                raise
        self._keep_waiting = keep_waiting

    def _connect(self, keep_waiting: Callable[[], None], seconds: float) -> None:
        connected: Future[Any] = Future()

        def exchange() -> None:
            try:
                connected.set_result(self._swap(torch.zeros(self.size, device=self._device)))
            except Exception as problem:
                connected.set_exception(problem)

        threading.Thread(target=exchange, daemon=True).start()
        deadline = time.monotonic() + seconds
        while not wait([connected], min(LOOK_SECONDS, seconds)).done:
            keep_waiting()
            if time.monotonic() > deadline:
                raise GroupLostError(f"another learner did not connect within {seconds:.0f} s")
        connected.result()

    def close(self) -> None:
        """Abort an unfinished exchange. Raises LearnerLossError if that fails: the GPU is then unusable."""
        left = self._backend, self._work  # keeps the work alive, with memory that its kernel may still use
        self._backend = self._work = None
        if left[0] is None:
            return

        def abort() -> None:
            with suppress(RuntimeError):
                left[0].abort()

        aborting = threading.Thread(target=abort, daemon=True)
        aborting.start()
        aborting.join(ABORT_SECONDS)
        if aborting.is_alive():
            raise LearnerLossError(f"NCCL has not aborted an exchange within {ABORT_SECONDS:.0f} s; use --resume")

    def _is_done(self, work: Any) -> bool:
        deadline = time.monotonic() + LOOK_SECONDS
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        work.wait()  # raises if the exchange failed, and orders this stream after it
        return True
