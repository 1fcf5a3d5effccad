"""The pool that acts in a thread of the learner's process: the unrolls of the plain pool, and how old they may be."""

import time

import pytest
import torch

from engram.actors.local_pool import LocalPool
from engram.actors.pool import ActorFailureError
from engram.actors.thread_pool import ThreadPool
from pools import FACTORY, lags, make_breaking, take, weights


@pytest.fixture
def make():
    """Pools that are closed at the end."""
    made = []

    def pool(make_actor=FACTORY.make_actor, num_actors=2, max_failures=0, ahead=8, report=print):
        made.append(ThreadPool(make_actor, num_actors, max_failures, report, num_envs=FACTORY.num_envs, ahead=ahead))
        return made[-1]

    yield pool
    for each in made:
        each.close()


def same(a, b):
    return torch.equal(a.env.observation, b.env.observation) and torch.equal(a.agent.logits, b.agent.logits)


def test_gathered_unrolls_are_those_of_the_plain_pool(make):
    threaded, plain = make(), LocalPool(FACTORY.make_actor, 2, 0)
    for version in (1, 2):
        for pool in (threaded, plain):
            pool.publish(weights(version))
        assert all(same(a, b) for a, b in zip(threaded.gather(), plain.gather(), strict=True))
    for pool in (threaded, plain):
        pool.publish(weights(3, member=1))
    for member in (1, 0):
        assert all(same(a, b) for a, b in zip(threaded.gather(member), plain.gather(member), strict=True))
    saved = threaded.save()
    expected = threaded.gather()
    threaded.restore(saved)
    assert all(same(a, b) for a, b in zip(expected, threaded.gather(), strict=True))


def test_no_more_is_made_than_the_bound_allows(make):
    pool = make(ahead=12)
    pool.publish(weights(1))
    assert [take(pool).weights_version[0].item() for _ in range(3)] == [1, 1, 1]
    assert pool.next() is None
    pool.publish(weights(2), learned=4)
    assert take(pool).weights_version[0].item() == 2
    assert pool.next() is None


def test_actors_take_turns_where_the_bound_has_room_for_one(make):
    pool = make(ahead=4)
    seen = []
    for _ in range(4):
        pool.publish(weights(1), learned=4)
        seen.append(take(pool).actor)
    assert seen == [0, 1, 0, 1]


def test_what_was_asked_for_before_a_copy_does_not_count(make):
    """A member that takes over another's weights learns from no unroll of its own old ones."""
    pool = make(ahead=8)
    pool.publish(weights(1))
    take(pool)
    take(pool)
    assert pool.next() is None
    pool.publish(weights(2)._replace(beginnings=1))
    assert take(pool).weights_version[0].item() == 2


@pytest.mark.parametrize(("batch_size", "members"), [(4, 1), (8, 2)])
def test_weights_that_act_are_at_most_one_update_old(make, batch_size, members):
    pool = make(ahead=2 * batch_size)
    assert max(lags(pool, batch_size, members, 12)) <= 1


def test_nothing_acts_while_a_graph_is_recorded(make):
    pool = make()
    pool.publish(weights(1))
    take(pool)
    with pool.still:
        before = pool.progress
        pool.publish(weights(2), learned=4)
        time.sleep(0.2)
        assert pool.progress == before
    assert take(pool)


def test_a_failed_actor_is_replaced(make):
    reports = []
    pool = make(make_breaking(which=1, steps=7), max_failures=3, report=reports.append)
    pool.publish(weights(1))
    for _ in range(4):
        assert {take(pool).actor for _ in range(2)} == {0, 1}
        pool.publish(weights(1), learned=8)
    assert pool.failures == 1
    assert "the floor gave way" in reports[0]


def test_an_actor_that_fails_once_too_often_ends_the_run(make):
    pool = make(make_breaking(which=0, steps=2, always=True), num_actors=1, max_failures=2, report=lambda _: None)
    pool.publish(weights(1))
    with pytest.raises(ActorFailureError, match="the floor gave way"):
        take(pool)


def test_actors_that_take_turns_at_every_step_make_what_they_make_alone():
    pools = [LocalPool(FACTORY.make_actor, 3, 0) for _ in range(2)]
    alone = pools[0].unrolls(range(3), [weights(1)])
    turns = pools[1]._in_turn(range(3), [weights(1)])
    assert all(same(a, b) for a, b in zip(alone, turns, strict=True))


def test_one_that_fails_in_its_turn_does_not_stop_the_others():
    pool = LocalPool(make_breaking(which=1, steps=2), 3, 3, lambda _: None)
    unrolls = pool._in_turn(range(3), [weights(1)])
    assert [unroll.actor for unroll in unrolls] == [0, 1, 2]
    assert pool.failures == 1
