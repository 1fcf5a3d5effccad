"""Learners with a share of every batch each, in processes of their own, equal one learner with all of it."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.distributed import FileStore, HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from engram.agents.cores import core_names
from engram.learners.config import LearnerConfig
from engram.learners.group import GlooGroup, GroupLostError
from group_cases import MakeGroup, Processes
from lazy_gloo import like_nccl
from reference_cases import TORSOS, Case, small_agent
from runs import wait_for

ADAM = LearnerConfig(
    lr=1e-2, eps=1.0
)  # Adam's first steps are as long for a gradient of rounding errors: a large epsilon
ALGORITHMS = {
    "vtrace": ADAM,
    "a2c": replace(ADAM, algorithm="a2c", algorithm_args={"gae_lambda": 0.9}, bptt_length=4),
    "ppo": replace(ADAM, algorithm="ppo", algorithm_args={"epochs": 2, "minibatches": 2}, max_grad_norm=0.1),
}
TOLERANCES = {True: 1e-12, False: 1e-6}
EVERY = [
    pytest.param(core, algorithm, marks=pytest.mark.integration if core == "lstm" else pytest.mark.nightly)
    for core in core_names()
    for algorithm in ALGORITHMS
]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("stores"), 3)
    yield processes
    processes.close()


def case(core: str, torso: str, algorithm: str, **agent: object) -> Case:
    spec, config = TORSOS[torso]
    return Case(spec, small_agent(core, config, **agent), ALGORITHMS[algorithm])


def compare(processes: Processes, given: Case, double: bool = True, make_group: MakeGroup = GlooGroup) -> None:
    """Assert that 2 and 3 learners end where one does, in weights, moments, counters and metrics."""
    (alone,) = processes.learn(given, 1, double)
    for learners in (2, 3):
        first, *others = processes.learn(given, learners, double, make_group)
        for other in others:
            assert all(torch.equal(value, other.tensors[name]) for name, value in first.tensors.items())
            assert str(other.metrics) == str(first.metrics)
        assert first.counts == alone.counts
        for name, value in first.tensors.items():
            torch.testing.assert_close(
                value, alone.tensors[name], rtol=0, atol=TOLERANCES[double], msg=lambda text, n=name: f"{n}: {text}"
            )
        for ours, theirs in zip(first.metrics, alone.metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-10 if double else 1e-3, abs=1e-10 if double else 1e-4)


@pytest.mark.parametrize(("core", "algorithm"), EVERY)
def test_several_learners_equal_one(processes: Processes, core: str, algorithm: str) -> None:
    given = case(core, "convolutions" if core == "conv-lstm" else "none", algorithm)
    for double in (True, False):
        compare(processes, given, double)


@pytest.mark.integration
def test_several_learners_whose_exchange_is_that_of_nccl_equal_one(processes: Processes) -> None:
    compare(processes, case("gru", "normalized", "ppo", normalize_returns=True), make_group=like_nccl)


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_running_statistics_are_those_of_all_shares(processes: Processes, algorithm: str) -> None:
    given = {"normalize_returns": True, "prediction_size": 6, "previous_reward": True, "critic": "privileged"}
    compare(processes, case("gru", "normalized", algorithm, **given))
    compare(processes, case("gru", "symbols", algorithm, normalize_returns=True))


@pytest.mark.integration
def test_a_minibatch_without_environments_of_a_share(processes: Processes) -> None:
    """Eight minibatches of one environment each, which is one learner's."""
    given = case("gru", "none", "ppo", normalize_returns=True)
    settings = {"epochs": 2, "minibatches": 8, "target_kl": 0.3}
    compare(processes, given._replace(learner=replace(given.learner, algorithm_args=settings)))


def test_a_group_is_left_while_another_learner_neither_answers_nor_ends(tmp_path: Path) -> None:
    """As across a cut link: the connection stays, nothing arrives."""

    def give_up() -> None:
        raise GroupLostError("learner 1 has not answered")

    def make(rank: int) -> None:
        store = FileStore(str(tmp_path / "store"), 2)
        groups[rank] = GlooGroup(store, rank, [1, 1], keep_waiting=give_up)

    groups: dict[int, GlooGroup] = {}
    other = threading.Thread(target=make, args=(1,))
    other.start()
    make(0)
    other.join()

    def leave() -> None:
        group = groups.pop(0)
        with pytest.raises(GroupLostError):
            group.total(1.0)
        group.close()

    leaving, began = threading.Thread(target=leave, daemon=True), time.monotonic()
    leaving.start()
    leaving.join(5.0)
    assert not leaving.is_alive(), "the group is still there"
    assert time.monotonic() - began < 5.0
    groups[1].close()  # both ends


class _Stopping(Store):
    """Stops this process once its address is there for others."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._store = FileStore(file, 2)

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value if isinstance(value, str) else bytes(value))  # pyright: ignore
        os.kill(os.getpid(), signal.SIGSTOP)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._store.wait(keys)

    def has_extended_api(self) -> bool:
        return False


def _join_and_stop(file: str) -> None:
    GlooGroup(_Stopping(file), 1, [1, 1], connect_seconds=60.0)


def _give_up() -> None:
    raise GroupLostError("the other learner does not respond")


def _join_and_total(file: str) -> None:
    group = GlooGroup(FileStore(file, 2), 0, [1, 1], keep_waiting=_give_up, connect_seconds=0.5)
    try:
        group.total(1.0)
    finally:
        group.close()


@pytest.mark.nightly
def test_a_learner_that_stops_while_it_joins_is_noticed(tmp_path: Path) -> None:
    file = str(tmp_path / "store")
    process = multiprocessing.get_context("spawn").Process(target=_join_and_stop, args=(file,))
    process.start()
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    began = time.monotonic()
    # The process that listens notices while it connects, the other one in the first exchange; ports decide which.
    with pytest.raises(RuntimeError):
        _join_and_total(file)
    assert time.monotonic() - began < 5.0
    process.kill()
    process.join()


@pytest.mark.parametrize("length", [1, 100, 10_000])
def test_all_learners_have_the_bits_of_a_sum_in_order_of_ranks(length: int) -> None:
    store, addends = HashStore(), torch.rand(3, length, generator=torch.Generator().manual_seed(0))

    def summed(rank: int) -> torch.Tensor:
        (total,), *_ = GlooGroup(store, rank, [1, 1, 1]).reduce([addends[rank]], [addends[rank]], torch.zeros(1))
        assert total is not None
        return total

    with ThreadPoolExecutor(3) as threads:
        for total in threads.map(summed, range(3)):
            assert torch.equal(total, addends[0] + addends[1] + addends[2])
