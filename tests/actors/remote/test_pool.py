"""The pool of Ray processes behaves as the one in this process, and survives its actors."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise

import pytest
import ray
import torch
from ray.exceptions import ObjectLostError, RayError

import pools
from engram.actors import ray_pool
from engram.actors.failures import ActorFailureError
from engram.actors.pool import MAX_IN_FLIGHT, Asking, LocalPool
from engram.actors.ray_pool import RayPool
from engram.actors.unroll import join
from engram.launch.cluster.ray_session import start_ray
from pools import FACTORY, gather, make_breaking, take, weights


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(pools)
    start_ray(2)
    yield
    ray.shutdown()


def test_gathers_exactly_what_the_local_pool_gathers() -> None:
    far, near = RayPool(FACTORY.make_actor, 2, 0), LocalPool(FACTORY.make_actor, 2, 0)
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


def test_requests_in_flight_are_bounded_and_carry_the_newest_weights() -> None:
    pool = RayPool(FACTORY.make_actor, 2, 0)
    pool.publish(weights(1))
    seen: Counter[int] = Counter()
    requested: dict[int, deque[int]] = {0: deque(), 1: deque()}
    update = 1
    while min(seen[0], seen[1]) < 6:
        unroll = take(pool)
        seen[unroll.actor] += 1
        # An actor's first requests are sent when it is ready, each later one when its last but one unroll is taken;
        # nobody else's pace matters to that.
        version = int(unroll.weights_version[0])
        assert version == requested[unroll.actor].popleft() if seen[unroll.actor] > MAX_IN_FLIGHT else version <= update
        requested[unroll.actor].append(update)
        update += 1
        pool.publish(weights(update))
        assert max(Counter(pool.open_requests()).values()) <= MAX_IN_FLIGHT
    pool.close()


def test_an_actors_unrolls_follow_each_other() -> None:
    pool = RayPool(FACTORY.make_actor, 1, 0)
    pool.publish(weights(1))
    unrolls = [take(pool) for _ in range(4)]
    for before, after in pairwise(unrolls):
        assert torch.equal(before.env.observation[-1], after.env.observation[0])
    pool.close()


def test_an_answer_can_be_several_unrolls() -> None:
    pool, near = RayPool(FACTORY.make_actor, 1, 0, asking=Asking(1, 3)), LocalPool(FACTORY.make_actor, 1, 0)
    for each in (pool, near):
        each.publish(weights(1))
    for version in (1, 1, 2):  # an answer is asked for when the one before is taken
        unroll, expected = take(pool), join([near.next() for _ in range(3)])
        assert unroll.weights_version.tolist() == [version] * 12
        if version == 1:
            assert torch.equal(unroll.agent.logits, expected.agent.logits)
            pool.publish(weights(2))
        assert pool.open_requests() == [0]
    pool.close()


def wait_for_all(pool: RayPool) -> None:
    """Until every open request is answered."""
    refs = list(pool._open)
    ray.wait(refs, num_returns=len(refs), timeout=60)


def test_of_answers_that_come_together_only_the_failed_are_lost() -> None:
    pool = RayPool(FACTORY.make_actor, 1, 0)

    @ray.remote(max_retries=0, num_cpus=0)
    def fall() -> None:
        raise RuntimeError("the floor gave way")

    first, failed, last = pool._fetch([ray.put("first"), fall.remote(), ray.put("last")])
    assert (first, last) == ("first", "last")
    assert isinstance(failed, RayError)
    assert "the floor gave way" in str(failed)
    pool.close()


def test_weights_are_sent_again_after_an_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = RayPool(FACTORY.make_actor, 1, max_failures=1, report=lambda _: None)
    pool.publish(weights(1))
    take(pool)
    assert pool._seats[0].told
    wait_for_all(pool)
    ref, get = next(iter(pool._open)), ray.get
    told: list[dict[int, object]] = []

    def lossy(refs: object, **options: object) -> object:
        if ref in (refs if isinstance(refs, list) else [refs]):
            raise ObjectLostError(ref.hex(), ref.owner_address(), "")
        return get(refs, **options)

    request = pool._request
    monkeypatch.setattr(pool, "_request", lambda seat, *rest: (told.append(dict(seat.told)), request(seat, *rest)))
    monkeypatch.setattr(ray_pool.ray, "get", lossy)
    assert [take(pool).actor for _ in range(3)] == [0, 0, 0]
    assert told[0] == {}
    assert pool.failures == 1
    assert pool._seats[0].life == 0
    pool.close()


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_failed_actor_is_replaced(how: str) -> None:
    reports: list[str] = []
    pool = RayPool(make_breaking(which=1, steps=7, how=how), 2, max_failures=3, report=reports.append)
    pool.publish(weights(1))
    seen = Counter(take(pool).actor for _ in range(16))
    while seen[1] < 3:
        seen[take(pool).actor] += 1
    assert len(reports) == 1
    assert how == "exit" or "the floor gave way" in reports[0]
    pool.close()


def test_a_failure_while_gathering_is_made_good() -> None:
    pool = RayPool(make_breaking(which=1, steps=7), 2, max_failures=3, report=lambda _: None)
    pool.publish(weights(1))
    assert [[u.actor for u in gather(pool)] for _ in range(3)] == [[0, 1]] * 3
    pool.close()


def test_too_many_failures_end_with_the_first_traceback() -> None:
    pool = RayPool(make_breaking(which=0, steps=2, always=True), 1, max_failures=1, report=lambda _: None)
    pool.publish(weights(1))
    with pytest.raises(ActorFailureError, match="the floor gave way"):
        take(pool)
    pool.close()


def test_an_actor_that_hangs_is_replaced() -> None:
    reports: list[str] = []
    pool = RayPool(make_breaking(which=0, steps=7, how="hang"), 1, max_failures=1, report=reports.append, timeout=3.0)
    pool.publish(weights(1))
    for _ in range(4):
        take(pool)
    assert len(reports) == 1
    pool.close()
