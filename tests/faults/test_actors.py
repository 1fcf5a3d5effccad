"""Faults of actors, injected for real: processes that die, hang, are slow to start, and answers that are lost."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import ray
import torch

import pools
from engram.actors.actor import Actor
from engram.actors.remote import pool as pool_module
from engram.actors.remote.pool import RayPool
from engram.launch.cluster.ray_session import start_ray
from pools import FACTORY, gather, make_breaking, open_window, take, weights
from runs import gone, wait_for, workers


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    for module in (pools, sys.modules[__name__]):  # actors cannot import from tests
        ray.cloudpickle.register_pickle_by_value(module)
    start_ray(2)
    yield
    ray.shutdown()


def fingerprint(unroll: Any) -> bytes:
    return unroll.agent.logits.numpy().tobytes() + unroll.env.observation.numpy().tobytes()


def take_many(pool: RayPool, count: int) -> list[Any]:
    """Unrolls of a pool, of which no two are the same."""
    unrolls = [take(pool) for _ in range(count)]
    assert len({(u.actor, fingerprint(u)) for u in unrolls}) == count
    return unrolls


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
def test_a_process_that_is_killed_or_hangs_is_replaced(number: signal.Signals) -> None:
    wait_for(lambda: not workers(os.getpid()))  # those of other tests
    reports: list[str] = []
    pool = RayPool(FACTORY.make_actor, 2, 1, window=open_window(), report=reports.append, timeout=8.0)
    pool.publish(weights(1))
    seen = Counter(u.actor for u in take_many(pool, 8))
    while len(seen) < 2:  # one that is still starting may take its time, and so would hang for longer
        seen[take(pool).actor] += 1
    victim = workers(os.getpid())[0]
    victim.send_signal(number)
    wait_for(lambda: (pool.next(), pool.failures)[1], seconds=20)  # timeout, and what others have answered meanwhile
    wait_for(lambda: (pool.next(), gone([victim]))[1], seconds=7)  # Ray alone lets a stopped one be for longer
    while len(workers(os.getpid())) < 2 or min(seen[0], seen[1]) < 8:
        seen[take(pool).actor] += 1
    assert pool.failures == len([report for report in reports if "failed" in report]) == 1
    pool.close()


def slow_to_start(number: int, member: int, life: int) -> Actor:
    """The first process breaks at once; the second takes far longer to start than an unroll may take."""
    if life:
        time.sleep(16)
    return pools.breaking(0, 0, "raise", False, number, member, life)


def test_starting_up_is_no_hanging() -> None:
    pool = RayPool(slow_to_start, 1, 1, window=open_window(), report=lambda _: None, timeout=8.0)
    pool.publish(weights(1))
    take(pool)
    assert pool.failures == 1
    pool.close()


def never_starts(number: int, member: int, life: int) -> Actor:
    if life == 0:
        time.sleep(1000)
    return FACTORY.make_actor(number, member, life)


def test_a_process_that_never_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "START_TIMEOUT", 4.0)
    reports: list[str] = []
    pool = RayPool(never_starts, 1, 9, window=open_window(), report=reports.append)
    pool.publish(weights(1))
    wait_for(lambda: (pool.next(), pool.failures)[1], seconds=300)
    monkeypatch.undo()
    take(pool)
    (report,) = reports
    assert report.startswith("actor 0 failed and is replaced (at most 9 times in a row):\nactor 0 has not responded")
    pool.close()


def confused(number: int, member: int, life: int) -> Actor:
    """An actor whose policy raises in its first life, at the third step."""
    actor = FACTORY.make_actor(number, member, life)
    step, steps = actor.agent.step, iter(range(1000))

    def act(*arguments: Any) -> Any:
        if life == 0 and next(steps) == 2:
            raise ArithmeticError("cannot decide")
        return step(*arguments)

    actor.agent.step = act  # type: ignore[method-assign]
    return actor


def test_a_policy_that_raises_costs_its_actor() -> None:
    reports: list[str] = []
    pool = RayPool(confused, 1, 1, window=open_window(), report=reports.append)
    pool.publish(weights(1))
    take_many(pool, 3)
    assert len(reports) == 1
    assert "ArithmeticError: cannot decide" in reports[0]
    pool.close()


def test_actors_that_all_hang_do_not_keep_the_learner_from_its_signals() -> None:
    pool = RayPool(
        make_breaking(which=0, steps=0, how="hang", always=True),
        1,
        9,
        window=open_window(),
        report=lambda _: None,
        timeout=120,
    )
    pool.publish(weights(1))
    wait_for(lambda: pool.next() is None and pool._open, seconds=300)
    for wait in (pool.next, pool.gather):
        began = time.monotonic()
        assert wait() is None
        assert time.monotonic() - began < 2 * pool_module.PATIENCE
    pool.close()


def test_a_gathering_that_was_interrupted_goes_on() -> None:
    pool = RayPool(
        make_breaking(which=1, steps=2, how="hang"), 2, 1, window=open_window(), report=lambda _: None, timeout=6
    )
    pool.publish(weights(1))
    waits = 0
    while (unrolls := pool.gather()) is None:
        waits += 1
    assert waits > 0
    assert [u.actor for u in unrolls] == [0, 1]
    after = gather(pool)
    assert torch.equal(after[0].env.observation[0], unrolls[0].env.observation[-1])  # nothing was left out
    pool.close()


def test_restarting_over_and_over_leaves_nothing_behind() -> None:
    """A few here; benchmarks/restarts.py does a thousand."""
    pool = RayPool(partial(pools.breaking, 0, 0, "exit", True), 1, 10, window=open_window(), report=lambda _: None)
    pool.publish(weights(1))
    wait_for(lambda: (pool.next(), pool.failures >= 4)[1], seconds=120)
    assert len(pool._open) <= 2
    pool.close()
    wait_for(lambda: not workers(os.getpid()), seconds=60)
