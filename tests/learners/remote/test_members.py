"""Learners of a population's members in other processes equal a learner in this one."""

from engram.actors.factory import ActorFactory
from engram.actors.remote.wire import pack
from engram.actors.unroll import Stored, join, some_environments
from engram.agents.agent import AgentConfig
from engram.agents.values import flatten
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.remote.members import MemberProcess


def test_an_update_from_parts_of_stored_unrolls_is_that_of_the_whole_batch() -> None:
    """Weights are bit-identical whether a learner gets a batch or fetches its parts of packed unrolls."""
    factory = ActorFactory(env="boxworld", agent=AgentConfig(core="lstm"), num_envs=4, unroll_length=5, seed=0)
    actor, config = factory.make_actor(0), LearnerConfig()
    unrolls, cuts = [actor.unroll() for _ in range(2)], [slice(1, 4), slice(0, 3)]
    initial = Learner(factory.make_actor(0).agent, config, total_steps=1000)
    state = initial.state_dict()
    batch = join([some_environments(unroll, cut) for unroll, cut in zip(unrolls, cuts, strict=True)])
    process = MemberProcess(lambda: Learner(factory.make_actor(0).agent, config, total_steps=1000), ".", 1)
    stored = [Stored(pack(unroll), cut.start, cut.stop) for unroll, cut in zip(unrolls, cuts, strict=True)]
    answer = process.learn(0, (state, config), [], stored)
    assert answer is not None
    initial.learn(batch)
    assert answer.steps == initial.steps == 2 * 3 * 5
    assert (answer.weights == flatten(initial.agent)).all()
    assert not (answer.weights == flatten(actor.agent)).all()
