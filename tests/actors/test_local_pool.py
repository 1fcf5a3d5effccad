"""The pool in this process: whose turn it is, whose weights, and what happens when an actor fails."""

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.local_pool import LocalPool
from engram.actors.member_pool import FORGIVEN_AFTER
from engram.actors.pool import ActorFailureError
from pools import FACTORY, Broken, lags, least_max_lag, make_breaking, weights


def test_actors_take_turns_with_the_newest_weights() -> None:
    pool = LocalPool(FACTORY.make_actor, 2, 0)
    pool.publish(weights(1))
    first, second = pool.next(), pool.next()
    pool.publish(weights(2))
    third = pool.next()
    assert [u.actor for u in (first, second, third)] == [0, 1, 0]
    assert [u.weights_version[0].item() for u in (first, second, third)] == [1, 1, 2]
    assert torch.equal(first.env.observation[-1], third.env.observation[0])


def test_gather_takes_one_of_each_in_order_and_repeats_exactly() -> None:
    runs = []
    for _ in range(2):
        pool = LocalPool(FACTORY.make_actor, 3, 0)
        pool.publish(weights(1))
        runs.append([unroll for _ in range(2) for unroll in pool.gather()])
    assert [u.actor for u in runs[0]] == [0, 1, 2, 0, 1, 2]
    assert all(torch.equal(a.agent.action, b.agent.action) for a, b in zip(*runs, strict=True))
    assert not torch.equal(runs[0][0].agent.action, runs[0][1].agent.action)


def test_save_and_restore_repeat_what_follows() -> None:
    pool = LocalPool(FACTORY.make_actor, 2, 0)
    pool.publish(weights(1))
    pool.gather()
    saved = pool.save()
    expected = pool.gather()
    pool.restore(saved)
    assert all(torch.equal(a.agent.logits, b.agent.logits) for a, b in zip(expected, pool.gather(), strict=True))


def test_a_failed_actor_is_replaced_and_its_first_traceback_shown_once() -> None:
    reports: list[str] = []
    pool = LocalPool(make_breaking(which=1, steps=7), 2, max_failures=3, report=reports.append)
    pool.publish(weights(1))
    unrolls = [pool.next() for _ in range(6)]
    assert [u.actor for u in unrolls] == [0, 1, 0, 1, 0, 1]
    assert len(reports) == 1
    assert "the floor gave way" in reports[0]
    assert "Traceback" in reports[0]


def test_too_many_failures_end_with_the_first_traceback() -> None:
    reports: list[str] = []
    pool = LocalPool(make_breaking(which=0, steps=2, always=True), 1, max_failures=3, report=reports.append)
    pool.publish(weights(1))
    with pytest.raises(ActorFailureError, match=r"failed 4 times in a row; 3 are allowed(?s:.*)the floor gave way"):
        pool.next()
    assert len(reports) == 1


def test_an_actor_that_calls_sys_exit_has_failed() -> None:
    reports: list[str] = []
    broken = make_breaking(which=0, steps=2, how="sys.exit", always=True)
    pool = LocalPool(broken, 1, max_failures=1, report=reports.append)
    pool.publish(weights(1))
    with pytest.raises(ActorFailureError, match=r"failed 2 times in a row; 1 are allowed(?s:.*)SystemExit: 0"):
        pool.next()


def test_weights_reach_the_actor() -> None:
    pool = LocalPool(FACTORY.make_actor, 1, 0)
    zero = weights(1)
    pool.publish(zero._replace(values=np.zeros_like(zero.values)))
    assert not pool.next().agent.logits.any()


@pytest.mark.parametrize(("num_actors", "batch_size"), [(1, 1), (3, 2), (1, 4), (3, 6), (1, 12)])
def test_the_bound_on_policy_lag_is_kept(num_actors: int, batch_size: int) -> None:
    pool = LocalPool(FACTORY.make_actor, num_actors, 0)
    found = lags(pool, batch_size, members=2, updates=8)
    assert max(found) <= least_max_lag(batch_size, FACTORY.num_envs) <= -(-FACTORY.num_envs // batch_size)


@pytest.mark.integration
def test_a_replacement_is_another_life_and_failures_far_apart_are_forgiven() -> None:
    """A replacement of the same life would play the levels again on which the one before it fell."""
    lives: list[int] = []

    def make(number: int, member: int, life: int) -> Actor:
        lives.append(life)
        actor = FACTORY.make_actor(number, member, life)
        actor.batch = Broken(actor.batch, 5 * (FORGIVEN_AFTER + 1), "raise")
        return actor

    pool = LocalPool(make, 1, 1, lambda _: None)
    pool.publish(weights(1))
    for _ in range(3 * (FORGIVEN_AFTER + 1)):  # each life ends, one after another, none soon after the one before
        pool.next()
    assert lives == [0, 1, 2]
    assert pool.failures == 2
