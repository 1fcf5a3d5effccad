"""A process group like that of NCCL: the first exchange connects it, and exchanges end when they are aborted."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from engram.learners.group import NcclGroup


class LazyGloo:
    """Gloo, connected by the first exchange, which waits for the others for an hour."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._place, self._gloo = (store, rank, size), None
        self.aborted = False

    def alltoall_base(self, *arguments: Any) -> Any:
        if self._gloo is None:
            options: Any = ProcessGroupGloo._Options()
            options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(hours=1)
            self._gloo = ProcessGroupGloo(*self._place, options)
        return self._gloo.alltoall_base(*arguments)

    def abort(self) -> None:
        self.aborted = True
        if self._gloo is not None:
            self._gloo.abort()


def like_nccl(store: Any, rank: int, widths: Sequence[int], **settings: Any) -> NcclGroup:
    """Connect learners on the CPU as those on GPUs are connected."""
    return NcclGroup(store, rank, widths, torch.device("cpu"), make_backend=LazyGloo, **settings)
