"""Group of learners that exchange gradients between GPUs with NCCL.

NCCL never returns by itself when a learner is lost. The first exchange creates the communicator and waits for all
learners without a timeout, so it runs in a thread. Later exchanges are asynchronous and are polled. Their kernels
occupy the GPU until the communicator is aborted, which `close` does.

`SharedGroup` forms the sums in rank order, so all ranks get the same bits.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from ...base.processes import environment, interface
from ..group import LOOK_SECONDS, GroupLostError, LearnerLossError, SharedGroup

POLL_SECONDS = 2e-4  # Seconds between two checks of an exchange, which also waits for the gradient
ABORT_SECONDS = 10.0  # Seconds within which an abandoned exchange must leave the GPU

MakeBackend = Callable[[Any, int, int, timedelta], Any]
"""(store, rank, size, timeout) -> a process group of torch.distributed; the first exchange connects it."""


def nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a process group that uses NCCL; `timeout` limits its `abort`."""
    from torch.distributed import ProcessGroupNCCL  # missing in builds of torch without CUDA

    options: Any = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


class NcclGroup(SharedGroup):
    """Group of learners with one GPU each; arguments as for GlooGroup, but `store` is read in another thread. Raises
    GroupLostError if the learners do not connect within `connect_seconds`."""

    def __init__(
        self,
        store: Any,
        rank: int,
        widths: Sequence[int],
        device: torch.device,
        address: str = "127.0.0.1",
        keep_waiting: Callable[[], None] = lambda: None,
        connect_seconds: float = 60.0,
        make_backend: MakeBackend = nccl,
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
        """Run the first exchange."""
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
