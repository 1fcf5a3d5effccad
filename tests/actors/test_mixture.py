"""A batch of environments of several stages is what its parts are, and an actor goes on with it exactly."""

import numpy as np
import torch

from engram.actors.factory import ActorFactory
from engram.actors.levels import LevelsConfig, MixtureBatch
from engram.actors.packed import tensors
from engram.agents.config import AgentConfig
from engram.agents.values import Weights, flatten

FACTORY = ActorFactory(
    env="boxworld",
    env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 12},
    levels=LevelsConfig(curriculum={"max_steps": [3]}, curriculum_mixture=0.5),
    agent=AgentConfig(core="gru", core_args={"hidden_size": 8}),
    num_envs=6,
    unroll_length=14,
    seed=2,
)


def test_each_part_of_a_mixture_steps_as_its_own_batch() -> None:
    batch = FACTORY.make_stage(6, (0.5, 0.5))
    assert isinstance(batch, MixtureBatch)
    first, second = (part.num_envs for part, _ in batch.parts)
    own = [FACTORY.make_batch(6, first, 0), FACTORY.make_batch(6 + first, second, 1)]
    seen, parts = batch.new_observation(), [each.new_observation() for each in own]
    batch.reset_into(seen, 5)
    for each, observation in zip(own, parts, strict=True):
        each.reset_into(observation, 5)
    rng = np.random.default_rng(0)
    arrays = [np.zeros(6, np.float32), np.zeros(6, np.bool_), np.zeros(6, np.bool_)]
    theirs = [[np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)] for n in (first, second)]
    for _ in range(14):
        actions = rng.integers(4, size=6)
        batch.step_into(actions, seen, *arrays)
        for each, observation, some, here in zip(own, parts, theirs, (slice(0, first), slice(first, 6)), strict=True):
            each.step_into(actions[here], observation, *some)
        assert np.array_equal(seen, np.concatenate(parts))
        for ours, *others in zip(arrays, *theirs, strict=True):
            assert np.array_equal(ours, np.concatenate(others))
        ended = np.flatnonzero(arrays[1] | arrays[2])
        facts = [own[int(i >= first)].episode_facts(np.array([i - first * (i >= first)])) for i in ended]
        assert not len(ended) or np.array_equal(batch.episode_facts(ended), np.concatenate(facts))
    batch.close()


def test_an_actor_with_other_shares_goes_on_from_what_it_saved() -> None:
    torch.manual_seed(0)
    one = FACTORY.make_actor(0)
    values = flatten(one.agent)
    one.unroll(Weights(1, 0, values))
    one.unroll(Weights(2, 0, values, 1, (0.2, 0.8)))
    assert [part.num_envs for part, _ in one.batch.parts] == [1, 5]
    other = FACTORY.make_actor(0)
    other.load(Weights(2, 0, values, 0))
    other.restore(one.save())
    assert other.stage == (0.2, 0.8)
    mine, theirs = one.unroll(), other.unroll()
    assert all(torch.equal(a, b) for a, b in zip(tensors(mine), tensors(theirs), strict=True))
    assert torch.equal(mine.episodes, theirs.episodes)
