"""Learners of a population's members in other processes equal a learner in this one."""

import pickle
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray
import torch

from engram.actors.factory import ActorFactory
from engram.actors.remote.wire import pack
from engram.actors.unroll import Stored, join, some_environments
from engram.agents.agent import AgentConfig
from engram.agents.values import flatten
from engram.learners.config import LearnerConfig
from engram.learners.group import GroupLostError
from engram.learners.learner import Learner
from engram.learners.remote.members import MemberHome, MemberProcess, RemoteLearner, batch_of
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
    """The member does not change, the user is told, and its next update is that of a learner in this process."""
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


def test_after_a_loss_a_learner_that_completed_the_update_collects_another_batch() -> None:
    """It has used its batch, and its weights become those of rank 0, which repeats the update."""
    team, worker = Team.__new__(Team), MagicMock(batch="used")
    parts = {"_learner": SimpleNamespace(steps=5), "_report": print, "_losses": 0, "_header": None}
    vars(team).update(parts, _workers=[worker], _lost_workers=list, _connect=lambda _: None)
    team._rebuild(GroupLostError("another learner is lost"))
    assert worker.batch is None
    assert worker.collecting is worker.handle.collect.remote.return_value
