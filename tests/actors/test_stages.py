"""An actor enters the next stage of a curriculum between two unrolls, with environments that begin."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engram.actors.actor import MemberActors
from engram.actors.levels import LevelsConfig
from engram.actors.unroll import Unroll
from engram.envs.registration import make_batch
from pools import FACTORY, weights

STAGED = replace(FACTORY, levels=LevelsConfig(curriculum={"max_steps": [1, 2]}), unroll_length=7)
"""Episodes end one action after their step limit: they have 2 actions, then 3, then the environment's limit."""


def of(stage: int, version: int):
    return weights(version)._replace(beginnings=stage, stage=stage)


def place(factory=STAGED) -> MemberActors:
    return MemberActors(factory.make_actor, 0, 0)


def same(a: Unroll, b: Unroll) -> bool:
    return (
        torch.equal(a.env.observation, b.env.observation)
        and torch.equal(a.agent.logits, b.agent.logits)
        and torch.equal(a.episodes, b.episodes)
    )


def ends(unroll: Unroll) -> list[bool]:
    """At which steps the first environment's episodes end."""
    return (unroll.env.terminated | unroll.env.truncated)[:, 0].tolist()


def test_an_unroll_is_of_one_stage_and_the_next_stage_begins_at_its_step_0() -> None:
    actors = place()
    first, second = actors.unroll(of(0, 1)), actors.unroll(of(0, 2))
    assert ends(first) == [False, False, True, False, False, True, False, False]
    assert ends(second)[:2] == [False, True], "step 0 of the second is step 7 of the first"
    third = actors.unroll(of(1, 3))
    assert ends(third) == [False, False, False, True, False, False, False, True]
    assert third.episodes[:, 2].tolist() == [3.0] * 8, "what was begun in the stage before counts for no episode"
    fresh = STAGED.make_agent(STAGED.make_batch()).initial_state(4)
    assert torch.equal(third.initial_state.core.h, fresh.core.h)
    assert not third.env.reward[0].any()
    assert not (third.env.terminated | third.env.truncated)[0].any()
    onward = actors.unroll(of(1, 4))
    assert torch.equal(onward.env.observation[0], third.env.observation[-1]), "only a new stage begins again"
    last = actors.unroll(of(2, 5))
    assert not any(ends(last)), "the target environment"


def test_the_last_stage_is_the_environment_as_asked_for() -> None:
    """The levels of a stage depend on the seed alone, and what is evaluated is the last one."""
    staged, plain = STAGED.make_batch(), make_batch(STAGED.env, 4, **STAGED.env_args)
    assert np.array_equal(staged.save()["parameters"], plain.save()["parameters"])
    assert not np.array_equal(STAGED.make_batch(stage=0).save()["parameters"], plain.save()["parameters"])
    assert same(place().unroll(of(2, 1)), place().unroll(of(2, 1)))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_saved_stage_goes_on_exactly(stage: int) -> None:
    first, second = place(), place()
    first.unroll(of(0, 1))
    first.unroll(of(stage, 2))
    second.restore(first.save())
    assert same(first.unroll(of(stage, 3)), second.unroll(of(stage, 3)))
    assert same(first.unroll(of(2, 4)), second.unroll(of(2, 4)))


def test_an_actor_that_is_replaced_enters_the_stage_of_its_weights() -> None:
    later = MemberActors(STAGED.make_actor, 0, 1)
    assert ends(later.unroll(of(1, 9))) == [False, False, False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_step": 3}, r"stage 1 of the curriculum \(max_step=3\): .*no parameter 'max_step'.*max_steps"),
        ({"max_steps": [3, 0]}, r"stage 2 of the curriculum \(max_steps=0\): max_steps"),
        (
            {"view": "full", "grid_size": 6},
            r"\(view=full grid_size=6\): its single_observation_space is ",
        ),
    ],
)
def test_a_stage_that_does_not_fit_is_named(parameters, message: str) -> None:
    factory = replace(FACTORY, levels=LevelsConfig(curriculum=parameters))
    with pytest.raises(ValueError, match=message) as caught:
        factory.check_levels(factory.make_batch(num_envs=1))
    assert "\n" not in str(caught.value)
