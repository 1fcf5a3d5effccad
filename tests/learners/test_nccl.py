"""The exchange of learners on GPUs, over Gloo instead of NCCL: lost learners are noticed wherever they are lost."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.distributed import FileStore, HashStore  # pyright: ignore[reportPrivateImportUsage]

from engram.learners import group as group_module
from engram.learners.group import GroupLostError, LearnerLossError, NcclGroup
from lazy_gloo import LazyGloo, like_nccl
from runs import wait_for

CPU = torch.device("cpu")
NOTICED_SECONDS = 5.0


def group(store: Any, rank: int, size: int = 2, **settings: Any) -> NcclGroup:
    return like_nccl(store, rank, [1] * size, **settings)


def test_all_learners_have_the_bits_of_a_sum_in_order_of_ranks() -> None:
    store, addends = HashStore(), torch.rand(3, 10_000, generator=torch.Generator().manual_seed(0))

    def summed(rank: int) -> tuple[torch.Tensor | None, float]:
        own = group(store, rank, 3)
        (total,), _ = own.reduce([addends[rank]], [addends[rank]], torch.zeros(1))
        (count,) = own.total(rank + 1.0)
        own.close()
        return total, count

    with ThreadPoolExecutor(3) as threads:
        for total, count in threads.map(summed, range(3)):
            assert total is not None
            assert torch.equal(total, addends[0] + addends[1] + addends[2])
            assert count == 6.0


def _join_and_sleep(file: str, joined: Any) -> None:
    own = group(FileStore(file, 2), 1)
    joined.set()
    time.sleep(3600.0)
    own.close()


def _stop_before_joining(file: str, joined: Any) -> None:
    joined.set()
    os.kill(os.getpid(), signal.SIGSTOP)
    group(FileStore(file, 2), 1)


class Watch:
    """The callback of rank 0 while it waits: it raises once the other process has been lost for two seconds."""

    def __init__(self) -> None:
        self.lost_at = float("inf")

    def __call__(self) -> None:
        if time.monotonic() > self.lost_at + 2.0:
            raise GroupLostError("learner 1 has not answered")


def start(work: Callable[[str, Any], None], file: str) -> Any:
    context = multiprocessing.get_context("spawn")
    joined = context.Event()
    process = context.Process(target=work, args=(file, joined), daemon=True)
    process.start()
    return process, joined


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_learner_lost_in_an_exchange_is_noticed(tmp_path: Path, number: signal.Signals) -> None:
    process, joined = start(_join_and_sleep, str(tmp_path / "store"))
    own = group(FileStore(str(tmp_path / "store"), 2), 0, keep_waiting=(watch := Watch()))
    assert joined.wait(60.0)
    os.kill(process.pid, number)
    watch.lost_at = began = time.monotonic()
    with pytest.raises(GroupLostError):
        own.total(1.0)
    backend = own._backend
    own.close()
    own.close()  # has no effect
    assert time.monotonic() - began < NOTICED_SECONDS
    assert backend.aborted
    process.kill()
    process.join()


@pytest.mark.nightly
def test_a_learner_lost_before_it_has_joined_is_noticed(tmp_path: Path) -> None:
    process, joined = start(_stop_before_joining, str(tmp_path / "store"))
    assert joined.wait(60.0)
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    watch = Watch()
    watch.lost_at = began = time.monotonic()
    with pytest.raises(GroupLostError, match="learner 1 has not answered"):
        group(FileStore(str(tmp_path / "store"), 2), 0, keep_waiting=watch)
    assert time.monotonic() - began < NOTICED_SECONDS
    process.kill()
    process.join()


def test_without_a_watch_a_connection_has_a_timeout(tmp_path: Path) -> None:
    with pytest.raises(GroupLostError, match="did not connect within 0 s"):
        group(FileStore(str(tmp_path / "store"), 2), 0, connect_seconds=0.2)


def test_an_exchange_that_cannot_be_aborted_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(LazyGloo):
        def abort(self) -> None:
            ended.wait()

    monkeypatch.setattr(group_module, "ABORT_SECONDS", 0.2)
    ended = threading.Event()
    alone = NcclGroup(HashStore(), 0, [1], CPU, make_backend=Hanging)
    with pytest.raises(LearnerLossError, match="has not aborted an exchange"):
        alone.close()
    ended.set()


def test_nccl_is_made_without_the_watchdog_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on the interface of this address, unless the user names one; the process keeps its variables."""
    names = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_SOCKET_IFNAME")

    def note(found: list[Any], store: Any, rank: int, size: int, timeout: timedelta) -> LazyGloo:
        found.append([os.environ.get(name) for name in names])
        return LazyGloo(store, rank, size, timeout)

    found: list[Any] = []
    for own in (None, "eth7"):
        if own:
            monkeypatch.setenv("NCCL_SOCKET_IFNAME", own)
        NcclGroup(HashStore(), 0, [1], CPU, make_backend=partial(note, found)).close()
    assert found == [["1", "lo"], ["1", "eth7"]]
    assert [os.environ.get(name) for name in names] == [None, "eth7"]
