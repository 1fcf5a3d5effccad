"""Members that act in one batched call against each alone: actions, logits, memories, failures, copies."""

from dataclasses import replace

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.actors.local_pool import LocalPool
from engram.actors.thread_pool import ThreadPool
from engram.agents.config import AgentConfig
from engram.agents.cores import core_names
from engram.agents.cores.core import state_leaves
from engram.agents.cores.registry import core_parameters
from engram.agents.values import Weights, flatten
from pools import make_breaking, take, weights
from small_cores import SMALL

MEMBERS = 3
ENVIRONMENT = {"path_lengths": 1, "num_distractors": 0, "max_steps": 6}


def factory_of(core, **agent):
    args = {key: SMALL[key] for key in SMALL if key in core_parameters(core)}
    config = AgentConfig(core=core, core_args=args, previous_action=core != "conv-lstm", **agent)
    return ActorFactory(env="boxworld", env_args=ENVIRONMENT, agent=config, num_envs=4, unroll_length=10, seed=3)


def publish(pool, factory, version=1, beginnings=0):
    for member in range(MEMBERS):
        torch.manual_seed(10 * version + member)
        values = flatten(factory.make_agent(factory.make_batch()))
        pool.publish(Weights(version, member, values, beginnings))


def assert_close(one, other):
    """The same levels, actions and episodes; numbers of the network but for rounding."""
    assert (one.member, one.actor) == (other.member, other.actor)
    assert torch.equal(one.weights_version, other.weights_version)
    assert torch.equal(one.env.observation, other.env.observation)
    assert torch.equal(one.agent.action, other.agent.action)
    assert torch.equal(one.episodes, other.episodes)
    torch.testing.assert_close(one.agent.logits, other.agent.logits, rtol=1e-4, atol=5e-5)
    torch.testing.assert_close(one.agent.value, other.agent.value, rtol=1e-4, atol=5e-5)
    for a, b in zip(state_leaves(one.initial_state), state_leaves(other.initial_state), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("core", core_names())
def test_every_core_acts_as_it_would_alone(core):
    """Over episodes' ends, which come after 6 steps, from one unroll to the next, with new weights."""
    factory = replace(factory_of(core), unroll_length=8)
    alone, together = (LocalPool(factory.make_actor, 1, 0, together=each) for each in (False, True))
    for version in (1, 2):
        for pool in (alone, together):
            publish(pool, factory, version)
        for member in range(MEMBERS):
            for one, other in zip(together.gather(member), alone.gather(member), strict=True):
                assert_close(one, other)


@pytest.mark.parametrize("greedy", [False, True], ids=["drawn", "greedy"])
def test_real_numbers_are_drawn_as_they_would_be_alone(greedy):
    """Actions of Pendulum, from the same Gaussians with the same random numbers."""
    agent = AgentConfig(core="gru", core_args={"hidden_size": 8}, normalize_returns=True)
    factory = ActorFactory(env="Pendulum-v1", agent=agent, num_envs=2, unroll_length=6, seed=1)

    def make(*arguments):
        actor = factory.make_actor(*arguments)
        actor.agent.greedy = greedy
        return actor

    alone, together = (LocalPool(make, 1, 0, together=each) for each in (False, True))
    for pool in (alone, together):
        publish(pool, factory)
    for member in range(MEMBERS):
        one, other = together.gather(member)[0], alone.gather(member)[0]
        torch.testing.assert_close(one.agent.action, other.agent.action, rtol=1e-4, atol=1e-5)
        assert one.agent.action.std() > 0


def test_requests_go_round_the_actors():
    factory = factory_of("lstm")
    pool = LocalPool(factory.make_actor, 2, 0, together=True)
    publish(pool, factory)
    made = [pool.next() for _ in range(2 * MEMBERS)]
    assert [(each.actor, each.member) for each in made] == [(actor, m) for actor in (0, 1) for m in range(MEMBERS)]
    pool.retire(1)
    assert [pool.next().member for _ in range(4)] == [0, 2, 0, 2]


def test_what_was_made_before_a_copy_is_not_handed_on():
    factory = factory_of("lstm")
    pool = LocalPool(factory.make_actor, 1, 0, together=True)
    publish(pool, factory)
    assert pool.next().member == 0
    torch.manual_seed(5)
    pool.publish(Weights(2, 1, flatten(factory.make_agent(factory.make_batch())), beginnings=1))
    assert [(each.member, each.weights_version[0].item()) for each in (pool.next() for _ in range(3))] == [
        (2, 1),
        (0, 1),
        (1, 2),
    ]


def test_an_actor_that_fails_is_replaced_for_all_members():
    said = []
    pool = LocalPool(make_breaking(1, 3, "once"), 2, 1, said.append, together=True)
    for member in range(MEMBERS):
        pool.publish(weights(1, member))
    assert [unroll.member for unroll in pool.gather(1)] == [1, 1]
    assert pool.gathering
    assert [unroll.actor for member in (0, 2) for unroll in pool.gather(member)] == [0, 1, 0, 1]
    assert pool.failures == 1
    assert not pool.gathering


def test_a_thread_acts_for_all_members_that_have_room():
    factory = factory_of("gru")
    threaded = ThreadPool(factory.make_actor, 2, 0, num_envs=4, ahead=8, together=True)
    alone = LocalPool(factory.make_actor, 2, 0)
    try:
        for pool in (threaded, alone):
            publish(pool, factory)
        found = [take(threaded) for _ in range(2 * MEMBERS)]
        assert threaded.next() is None
        assert sorted((each.member, each.actor) for each in found) == [(m, a) for m in range(MEMBERS) for a in (0, 1)]
        expected = {(member, each.actor): each for member in range(MEMBERS) for each in alone.gather(member)}
        for each in found:
            assert_close(each, expected[each.member, each.actor])
    finally:
        threaded.close()
