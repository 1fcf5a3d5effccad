"""One place, several members: turns, environments of their own, and what a copied member begins with."""

from collections import Counter

import pytest
import torch

from engram.actors.actor import MemberActors, WeightsVersion
from engram.actors.local_pool import LocalPool
from engram.actors.member_pool import MemberSchedule
from engram.actors.unroll import Unroll, join, some_environments
from engram.agents.values import Weights
from pools import FACTORY, weights


def of(member: int, version: int = 1, beginnings: int = 0) -> Weights:
    return weights(version)._replace(member=member, beginnings=beginnings)


def same(a: Unroll, b: Unroll) -> bool:
    return torch.equal(a.env.observation, b.env.observation) and torch.equal(a.agent.logits, b.agent.logits)


def actors() -> MemberActors:
    return MemberActors(FACTORY.make_actor, 0, 0)


def test_members_take_turns() -> None:
    turns = MemberSchedule()
    for member in (2, 0, 5):
        turns.join(member)
    turns.join(0)
    assert [turns.next() for _ in range(7)] == [0, 2, 5, 0, 2, 5, 0]
    turns.give_back(0)
    assert [turns.next() for _ in range(4)] == [0, 2, 5, 0], "a lost request is dealt again first"
    turns.leave(0)
    turns.join(7)
    assert Counter(turns.next() for _ in range(9)) == {2: 3, 5: 3, 7: 3}
    turns.give_back(0)


def test_a_pool_is_shared_by_all_members() -> None:
    pool = LocalPool(FACTORY.make_actor, 2, max_failures=0)
    for member in range(3):
        pool.publish(of(member, version=member + 1))
    unrolls = [pool.next() for _ in range(6)]
    assert [u.member for u in unrolls] == [0, 1, 2, 0, 1, 2]
    assert [int(u.weights_version[0]) for u in unrolls] == [1, 2, 3, 1, 2, 3]
    pool.retire(1)
    assert Counter(pool.next().member for _ in range(6)) == {0: 3, 2: 3}
    assert [(u.member, u.actor) for u in pool.gather(2)] == [(2, 0), (2, 1)]


def test_members_have_environments_of_their_own() -> None:
    """One member's work is not seen by another, and the first member's levels are those without a population."""
    alone, together = actors(), actors()
    expected = [alone.unroll(of(0)) for _ in range(3)]
    for each in expected:
        assert same(each, together.unroll(of(0)))
        other = together.unroll(of(1))
        assert other.member == 1
        assert not torch.equal(other.env.observation, each.env.observation)


@pytest.mark.parametrize("member", [0, 3])
def test_all_members_are_saved_and_restored(member: int) -> None:
    first, second = actors(), actors()
    for each in (0, 3, 3):
        first.unroll(of(each))
    second.restore(first.save())
    assert same(first.unroll(of(member)), second.unroll(of(member)))


def test_copied_weights_begin_with_new_episodes_and_an_empty_memory() -> None:
    place, other = actors(), actors()
    last = place.unroll(of(0))
    other.unroll(of(0))
    after = place.unroll(of(0, version=2, beginnings=1))
    assert not torch.equal(after.env.observation[0], last.env.observation[-1]), "the same episodes go on"
    fresh = FACTORY.make_agent(FACTORY.make_batch()).initial_state(4)
    assert torch.equal(after.initial_state.core.h, fresh.core.h)
    assert not torch.equal(last.agent.logits[0], last.agent.logits[-1])
    assert same(other.unroll(of(0, version=2, beginnings=1)), after), "not the same every time"
    onward = place.unroll(of(0, version=3, beginnings=1))
    assert torch.equal(onward.env.observation[0], after.env.observation[-1]), "only a copy begins again"
    # A state that was saved after the copy does not begin again when it is restored.
    other.unroll(of(0, version=3, beginnings=1))
    restored = actors()
    restored.restore(place.save())
    assert same(restored.unroll(of(0, version=4, beginnings=1)), other.unroll(of(0, version=4, beginnings=1)))


def test_several_unrolls_at_once_are_those_that_follow_each_other() -> None:
    one_by_one, at_once = actors(), actors()
    expected = [one_by_one.unroll(of(0)) for _ in range(5)]
    first, rest = at_once.unrolls(of(0), 2), at_once.unrolls(WeightsVersion(0, 1), 3)
    assert same(first, join(expected[:2]))
    assert same(rest, join(expected[2:]))
    assert torch.equal(some_environments(rest, slice(4, 8)).initial_state.core.h, expected[3].initial_state.core.h)
    assert rest.weights_version.tolist() == [1] * 12
    assert rest.episodes.tolist() == [episode for each in expected[2:] for episode in each.episodes.tolist()]
    assert rest.seconds > 0


def test_weights_that_did_not_arrive_are_not_taken_for_others() -> None:
    place = actors()
    for known in (WeightsVersion(0, 1), WeightsVersion(1, 1)):
        with pytest.raises(RuntimeError, match="was lost in transfer"):
            place.unrolls(known, 1)
    place.unrolls(of(0, version=2), 1)
    for known in (WeightsVersion(0, 1), WeightsVersion(1, 2)):
        with pytest.raises(RuntimeError, match="was lost in transfer"):
            place.unrolls(known, 1)
    assert place.unrolls(WeightsVersion(0, 2), 1).weights_version.tolist() == [2] * 4


def test_among_members_with_equally_many_requests_an_actor_gets_the_one_that_it_served_least() -> None:
    turns = MemberSchedule()
    for member in range(3):
        turns.join(member)
    assert turns.next(served={0: 5, 1: 1, 2: 1}) == 1
    assert turns.next(served={0: 5, 1: 1, 2: 1}) == 2
    assert turns.next(served={0: 5}) == 0, "the one with the fewest requests of all"
