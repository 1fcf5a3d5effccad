"""The pool of Ray processes behaves as the one in this process, and survives its actors."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import ray
import torch
from ray.exceptions import RayError

import pools
from engram.actors.levels import LevelsConfig
from engram.actors.local_pool import LocalPool
from engram.actors.pool import ActorFailureError, ActorStateError
from engram.actors.remote import pool as pool_module
from engram.actors.remote.pool import RayPool
from engram.actors.remote.slot import RequestWindow, fetch, unpack
from engram.actors.unroll import join
from engram.base.errors import EngramError
from engram.launch.cluster.ray_session import require_gpus, start_ray
from pools import FACTORY, gather, lags, make_breaking, open_window, take, weights
from runs import wait_for


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(pools)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", partial(ray.init, num_gpus=1))  # a number to Ray, which looks for no device
        start_ray(2)
    yield
    ray.shutdown()


def test_gathers_exactly_what_the_local_pool_gathers() -> None:
    far, near = RayPool(FACTORY.make_actor, 2, 0, window=open_window()), LocalPool(FACTORY.make_actor, 2, 0)
    for version in (1, 2):
        for pool in (far, near):
            pool.publish(weights(version))
        for a, b in zip(gather(far), gather(near), strict=True):
            assert (a.actor, a.member) == (b.actor, b.member)
            assert a.weights_version.tolist() == [version] * 4
            assert torch.equal(a.env.observation, b.env.observation)
            assert torch.equal(a.agent.action, b.agent.action)
            assert torch.equal(a.agent.logits, b.agent.logits)
            assert torch.equal(a.initial_state.core.h, b.initial_state.core.h)
    saved = far.save()
    expected = gather(far)
    far.restore(saved)
    assert all(torch.equal(a.agent.logits, b.agent.logits) for a, b in zip(expected, gather(far), strict=True))
    far.close()


def test_unrolls_for_another_process_stay_in_the_store() -> None:
    far, near = RayPool(FACTORY.make_actor, 1, 0, window=open_window()), LocalPool(FACTORY.make_actor, 1, 0)
    far.apart = frozenset([0])
    for pool in (far, near):
        pool.publish(weights(1))
        assert gather(pool)[0].env is not None, "synchronous batches are whole"
    whole, header = take(near), take(far)
    assert header.env is None
    assert header.agent is None
    assert header.initial_state is None
    (stored,) = header.stored
    assert (stored.first, stored.end) == (0, FACTORY.num_envs)
    assert torch.equal(header.weights_version, whole.weights_version)
    assert torch.equal(unpack(ray.get(stored.parcel)).agent.logits, whole.agent.logits)
    far.close()


@pytest.mark.parametrize(("num_actors", "batch_size", "max_lag", "members"), [(1, 4, 1, 1), (2, 3, 2, 2)])
def test_the_bound_on_policy_lag_is_kept(num_actors: int, batch_size: int, max_lag: int, members: int) -> None:
    """Through requests, answers that overtake each other and batches cut from both, in actors of 4 environments."""
    window = RequestWindow(batch_size, max_lag, FACTORY.num_envs, num_actors)
    pool = RayPool(FACTORY.make_actor, num_actors, 0, window=window)
    found = lags(pool, batch_size, members, updates=12)
    assert max(found) <= max_lag
    assert max(found) > 0, "nothing was made while the learner was busy"
    pool.close()


def open_requests(pool: RayPool) -> list[int]:
    return [request.slot.number for request in pool._open.values()]


def test_new_weights_are_a_reason_to_ask() -> None:
    """The learner has batches left from a wide unroll: the next is asked for while it learns from them."""
    pool = RayPool(FACTORY.make_actor, 1, 0, window=RequestWindow(2, 2, FACTORY.num_envs, 1))
    pool.publish(weights(1))
    take(pool)
    assert open_requests(pool) == []  # 4 environments are not learned from; 4 more would be 3 updates old at last
    pool.publish(weights(2), learned=2)
    assert open_requests(pool) == [0]
    pool.close()


def test_an_actors_unrolls_follow_each_other_until_a_copy() -> None:
    """An unroll that was requested before the copy is not handed on."""
    pool = RayPool(FACTORY.make_actor, 1, 0, window=open_window())
    pool.publish(weights(1))
    unrolls = [take(pool) for _ in range(4)]
    for before, after in pairwise(unrolls):
        assert torch.equal(before.env.observation[-1], after.env.observation[0])
    wait_for_all(pool)
    pool.publish(weights(2)._replace(beginnings=1))
    assert take(pool).weights_version.tolist() == [2] * FACTORY.num_envs
    pool.close()


def test_an_answer_can_be_several_unrolls() -> None:
    pool, near = RayPool(FACTORY.make_actor, 1, 0, window=open_window(3, 1)), LocalPool(FACTORY.make_actor, 1, 0)
    for each in (pool, near):
        each.publish(weights(1))
    for version in (1, 1, 2):  # an answer is asked for when the one before is taken
        unroll, expected = take(pool), join([near.next() for _ in range(3)])
        assert unroll.weights_version.tolist() == [version] * 12
        if version == 1:
            assert torch.equal(unroll.agent.logits, expected.agent.logits)
            pool.publish(weights(2))
        assert open_requests(pool) == [0]
    pool.close()


def wait_for_all(pool: RayPool) -> None:
    """Until every open request is answered."""
    refs = list(pool._open)
    ray.wait(refs, num_returns=len(refs), timeout=60)


def test_of_answers_that_come_together_only_the_failed_are_lost() -> None:
    @ray.remote(max_retries=0, num_cpus=0)
    def fall() -> None:
        raise RuntimeError("the floor gave way")

    first, failed, last = fetch([ray.put("first"), fall.remote(), ray.put("last")], 2.0, 120.0)
    assert (first, last) == ("first", "last")
    assert isinstance(failed, RayError)
    assert "the floor gave way" in str(failed)


@pytest.mark.parametrize(
    "how", ["raise", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("exit", "sys.exit"))]
)
def test_a_failed_actor_is_replaced(how: str) -> None:
    reports: list[str] = []
    pool = RayPool(
        make_breaking(which=1, steps=7, how=how), 2, max_failures=3, window=open_window(), report=reports.append
    )
    pool.publish(weights(1))
    seen = Counter(take(pool).actor for _ in range(16))
    while seen[1] < 3:
        seen[take(pool).actor] += 1
    failures = [report for report in reports if "slower than the others" not in report]  # the new process starts late
    assert len(failures) == 1
    assert how != "raise" or "the floor gave way" in failures[0]
    pool.close()


@pytest.mark.nightly
def test_answers_of_a_process_that_was_given_up_are_not_taken() -> None:
    """The second unroll raises; the third, made from whatever state that left, is answered all the same."""
    pool = RayPool(make_breaking(which=0, steps=7, how="once"), 1, 3, window=open_window(), report=lambda _: None)
    pool.publish(weights(1))
    take(pool)
    wait_for_all(pool)
    expected = FACTORY.make_actor(0, 0, life=1).unroll(weights(1))
    assert torch.equal(take(pool).agent.logits, expected.agent.logits)
    pool.close()


def test_a_new_stage_reaches_the_actors_with_the_weights() -> None:
    """And nothing of the stage before is handed on; only there do episodes end within an unroll."""
    factory = replace(FACTORY, levels=LevelsConfig(curriculum={"max_steps": 1}))
    pool = RayPool(factory.make_actor, 1, 0, window=open_window())
    for version, stage in ((1, 0), (2, 1)):
        pool.publish(weights(version)._replace(beginnings=stage, stage=stage))
        assert bool(take(pool).env.truncated.any()) == (stage == 0)
        wait_for_all(pool)
    pool.close()


@pytest.mark.nightly
def test_an_actor_that_keeps_the_others_waiting_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PASS_OVER_SECONDS", 0.2)
    reports: list[str] = []
    window = RequestWindow(8, 1, FACTORY.num_envs, 2)
    pool = RayPool(make_breaking(which=1, steps=7, how="hang"), 2, 1, window=window, report=reports.append, timeout=100)
    while not reports:  # it may be long in starting, and so in falling behind
        assert max(lags(pool, 8, members=1, updates=8)) <= 1
    assert len(reports) == 1
    assert "actor 1 is slower than the others" in reports[0]
    pool.close()


@pytest.mark.nightly
def test_a_failure_while_gathering_is_made_good() -> None:
    pool = RayPool(make_breaking(which=1, steps=7), 2, max_failures=3, window=open_window(), report=lambda _: None)
    pool.publish(weights(1))
    assert [[u.actor for u in gather(pool)] for _ in range(3)] == [[0, 1]] * 3
    pool.close()


@pytest.mark.nightly
def test_too_many_failures_end_with_the_first_traceback() -> None:
    pool = RayPool(
        make_breaking(which=0, steps=2, always=True), 1, max_failures=1, window=open_window(), report=lambda _: None
    )
    pool.publish(weights(1))
    with pytest.raises(ActorFailureError, match="the floor gave way"):
        take(pool)
    pool.close()


@pytest.mark.nightly
def test_an_actor_that_hangs_is_replaced() -> None:
    reports: list[str] = []
    pool = RayPool(
        make_breaking(which=0, steps=7, how="hang"),
        1,
        max_failures=1,
        window=open_window(),
        report=reports.append,
        timeout=3.0,
    )
    pool.publish(weights(1))
    for _ in range(4):
        take(pool)
    assert len(reports) == 1
    pool.close()


@pytest.mark.nightly
def test_the_state_of_a_lost_actor_cannot_be_had() -> None:
    """Neither of one that has died unnoticed nor of one in its pause; the pool goes on all the same."""
    pool = RayPool(FACTORY.make_actor, 1, max_failures=3, window=open_window(), report=lambda _: None)
    pool.publish(weights(1))
    gather(pool)
    (slot,) = pool._slots
    assert slot.place is not None
    os.kill(slot.place.pid, signal.SIGKILL)
    with pytest.raises(ActorStateError):
        pool.save()
    pool._lose(slot, "it was killed")
    with pytest.raises(ActorStateError, match="an actor has failed and is not replaced yet"):
        pool.save()
    gather(pool)
    assert slot.life == 1
    assert len(pool.save()) == 1
    pool.close()


@pytest.mark.nightly
def test_elastic_slots_fill_any_that_is_ready() -> None:
    """The first empty slot is in its pause; the second is not."""
    wait_for(lambda: ray.available_resources().get("CPU", 0) >= 2)  # those of other pools have gone
    pool = RayPool(FACTORY.make_actor, None, 3, window=open_window(), report=lambda _: None)
    first, second, *_ = pool._slots
    for slot in pool._slots:
        ray.get(slot.starting)
        slot.starting = None
    for slot, since in ((first, float("inf")), (second, 0.0)):
        ray.kill(slot.handle)
        slot.handle, slot.since = None, since
    pool._fill()
    assert (first.handle, second.starting is None) == (None, False)
    pool.close()


def test_actors_share_a_gpu_by_parts_of_it() -> None:
    """Ray counts it and shows it to those that claim it; their networks are on the CPU here, where there is none."""
    wait_for(lambda: ray.available_resources().get("CPU", 0) >= 2)
    seen = partial(pools.telling, "CUDA_VISIBLE_DEVICES")
    pool = RayPool(seen, 2, 0, window=open_window(), cpus_per_actor=0.5, gpus_per_actor=0.5)
    pool.publish(weights(1))
    assert [unroll.actor for unroll in gather(pool)] == [0, 1]
    assert ray.available_resources().get("GPU", 0) == 0
    assert [state[0]["told"] for state in pool.save()] == ["0", "0"]
    pool.close()
    wait_for(lambda: ray.available_resources().get("GPU", 0) == 1)
    elastic = RayPool(FACTORY.make_actor, None, 0, window=open_window(), cpus_per_actor=0.1, gpus_per_actor=0.4)
    assert len(elastic._slots) == 2, "more than fit on the GPU"
    elastic.close()


@pytest.mark.parametrize(("actors", "part", "room"), [(2, 0.6, 1), (3, 0.5, 2)])
def test_more_actors_than_gpus_have_room_for_are_refused(actors: int, part: float, room: int) -> None:
    require_gpus(2, 0.5)
    require_gpus(100, 0.0)
    with pytest.raises(EngramError, match=rf"--actor-gpus {part}: Ray has 1 GPUs, with room for {room} such actors"):
        require_gpus(actors, part)
