"""Learners of a population's members in other processes equal a learner in this one."""

import pickle
from typing import Any

import pytest
import ray
import torch

from engram.actors.factory import ActorFactory
from engram.actors.local_pool import LocalPool
from engram.actors.remote.slot import pack
from engram.actors.unroll import Stored, join, some_environments
from engram.agents.config import AgentConfig
from engram.agents.values import Weights, flatten
from engram.learners.config import LearnerConfig
from engram.learners.group import GroupLostError, Share
from engram.learners.learner import Learner
from engram.learners.remote.members import MemberHome, MemberProcess, RemoteLearner, batch_of
from engram.learners.remote.processes import MakePool
from engram.learners.remote.team import Team
from runs import wait_for


def test_an_update_from_parts_of_stored_unrolls_is_that_of_the_whole_batch() -> None:
    """Weights are bit-identical whether a learner gets a batch or fetches its parts of packed unrolls."""
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core="lstm"), num_envs=4, unroll_length=5, seed=0)
    actor, config = factory.make_actor(0), LearnerConfig()
    unrolls, cuts = [actor.unroll() for _ in range(2)], [slice(1, 4), slice(0, 3)]
    initial = Learner(factory.make_actor(0).agent, config, total_steps=1000)
    state = initial.state_dict()
    batch = join([some_environments(unroll, cut) for unroll, cut in zip(unrolls, cuts, strict=True)])
    process = MemberProcess(lambda: Learner(factory.make_actor(0).agent, config, total_steps=1000), ".")
    stored = [Stored(pack(unroll), cut.start, cut.stop) for unroll, cut in zip(unrolls, cuts, strict=True)]
    answer = pickle.loads(b"".join(process.learn(0, (state, config), stored, 2)))
    weights, _, updates, steps, *_ = answer
    initial.learn(batch)
    assert (updates, steps) == (initial.updates, initial.steps) == (1, 2 * 3 * 5)
    assert (weights == flatten(initial.agent)).all()
    assert not (weights == flatten(actor.agent)).all()


@pytest.mark.nightly
def test_unrolls_that_are_lost_with_their_machine_are_left_out(shared_ray: None) -> None:
    """The member does not change, a message reports it, and its next update is that of a learner in this process."""
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core="lstm"), num_envs=4, unroll_length=5, seed=0)
    actor, config = factory.make_actor(0), LearnerConfig()
    lost, next_one = actor.unroll(), actor.unroll()

    class Owner:
        """Ray actor with whose process an object is lost."""

        def store(self, value: Any) -> list[Any]:
            return [ray.put(value)]

    owner: Any = ray.remote(num_cpus=0)(Owner).remote()  # pyright: ignore
    (ref,) = ray.get(owner.store.remote(pack(lost)))
    ray.kill(owner)
    wait_for(lambda: batch_of([Stored(ref, 0, 4)]) is None, seconds=60)
    reports: list[str] = []

    def make_learner() -> Learner:
        return Learner(factory.make_actor(0).agent, config, total_steps=1000)

    plain, agent = make_learner(), make_learner().agent
    home = MemberHome(1, make_learner, torch.device("cpu"), reports.append)
    home.wait()
    remote = RemoteLearner(agent, config, 1000, home, 0)
    remote.load_state_dict(plain.state_dict())
    remote.learn(lost._replace(stored=(Stored(ref, 0, 4),)))
    assert (remote.updates, remote.steps, remote.read()) == (0, 0, [])
    assert (flatten(agent) == flatten(plain.agent)).all()
    assert reports == ["unrolls of member 0 were lost with their machine and are not used"]
    remote.learn(next_one)
    plain.learn(next_one)
    assert remote.updates == 1
    assert (flatten(agent) == flatten(plain.agent)).all()


@pytest.mark.integration
def test_after_a_loss_a_learner_that_completed_the_update_collects_another_batch(shared_ray: None) -> None:
    """The process has used its batch when the group of learners restarts, and rank 0 repeats the update."""
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core="lstm"), num_envs=2, unroll_length=5, seed=0)

    def make_learner() -> Learner:
        return Learner(factory.make_actor(0).agent, LearnerConfig(), total_steps=1000)

    def make_pool(_: Share) -> MakePool:
        return lambda report: LocalPool(factory.make_actor, 1, 0, report)

    shares, reports = [Share(0, 1, 2), Share(1, 1, 2)], list[str]()
    pool, device = make_pool(shares[0])(reports.append), torch.device("cpu")
    team, learner = Team(pool, shares, make_learner, make_pool, True, reports.append, device), make_learner()
    try:
        team.connect(learner)
        team.publish(Weights(0, 0, flatten(learner.agent)))
        while (unrolls := team.gather()) is None:
            pass
        completed = [worker.handle.learn.remote() for worker in team._workers]
        learner.learn(unrolls[0])
        ray.get(completed)
        team._rebuild(GroupLostError("another learner is lost"))
        team.learn(learner, unrolls[0])
    finally:
        team.close()
    assert learner.updates == 2
    assert reports == ["another learner is lost: the group of learners restarts from step 20; lost ones need --resume"]
