"""Environments that begin together are spread over the phases of an episode, by truncations that are no episodes."""

from dataclasses import replace

import numpy as np
import torch

from engram.actors.actor import MemberActors
from engram.actors.levels import LevelsConfig, Stagger
from engram.actors.unroll import Unroll
from pools import FACTORY, weights

STAGGERED = replace(FACTORY, levels=LevelsConfig(stagger=10), unroll_length=7, env_args={"max_steps": 12})


def flags(unrolls: list[Unroll], which: str) -> np.ndarray:
    """Flags of steps 1, 2, … of consecutive unrolls, [T, B]."""
    return np.concatenate([getattr(unroll.env, which)[1:].numpy() for unroll in unrolls])


def unrolls(factory=STAGGERED, number: int = 0) -> list[Unroll]:
    actor = factory.make_actor(number)
    return [actor.unroll(weights(1)) for _ in range(4)]


def test_first_episodes_are_cut_one_after_another_and_later_ones_are_not() -> None:
    given = unrolls()
    ends = flags(given, "truncated") | flags(given, "terminated")
    first = ends.argmax(0) + 1
    assert first.tolist() == [1, 7, 3, 9], "1 + floor(10 frac(i golden))"
    for i, step in enumerate(first):
        assert flags(given, "truncated")[step - 1, i]
        assert ends[:, i].nonzero()[0][:2].tolist() == [step - 1, step + 13], "13 actions and the ignored one later"


def test_what_is_cut_counts_for_no_episode() -> None:
    given = unrolls()
    episodes = torch.cat([unroll.episodes for unroll in given])
    assert set(episodes[:, 2].tolist()) == {13.0}
    assert len(episodes) == sum(int(unroll.env.truncated[1:].sum()) for unroll in given) - 4


def test_cuts_depend_on_the_index_alone() -> None:
    wide = flags(unrolls(replace(STAGGERED, num_envs=8)), "truncated")
    narrow = np.concatenate([flags(unrolls(number=number), "truncated") for number in (0, 1)], axis=1)
    assert wide[:10].tolist() == narrow[:10].tolist()


def test_a_stop_between_the_cuts_changes_nothing() -> None:
    first, second = (MemberActors(STAGGERED.make_actor, 0, 0) for _ in range(2))
    first.unroll(weights(1))
    second.restore(first.save())
    a, b = first.unroll(weights(2)), second.unroll(weights(2))
    assert torch.equal(a.env.truncated, b.env.truncated)
    assert a.env.truncated.any()
    assert torch.equal(a.env.observation, b.env.observation)
    assert torch.equal(a.episodes, b.episodes)


def test_the_episode_of_the_moment_is_cut_and_none_where_one_ends_then() -> None:
    """Steps over which cuts are spread may be many episodes: short ones come before long ones in a curriculum."""
    stagger = Stagger(10, 0, 4)
    assert stagger.left.tolist() == [1, 7, 3, 9]
    ends = [[False, i in (2, 6), i == 2, i == 3] for i in range(10)]
    cuts = [stagger.due(np.array(over)) for over in ends]
    assert [None if cut is None else cut.nonzero()[0].tolist() for cut in cuts] == [[0], *[None] * 7, [3], None]
    assert Stagger(0, 0, 4).due(np.zeros(4, np.bool_)) is None


def test_environments_of_a_new_stage_are_spread_again() -> None:
    """Weights of a later stage come after the first unroll: all begin again and are cut after as many steps."""
    levels = LevelsConfig(stagger=10, curriculum={"max_steps": [8]})
    actor = replace(STAGGERED, levels=levels).make_actor(0)
    actor.unroll(weights(1))
    given = [actor.unroll(weights(2)._replace(beginnings=1, stage=1)) for _ in range(2)]
    first = (flags(given, "truncated") | flags(given, "terminated")).argmax(0) + 1
    assert first.tolist() == [1, 7, 3, 9]


def test_phases_lie_evenly() -> None:
    counts, _ = np.histogram(Stagger(100, 64, 64).left, 8, (1, 101))
    assert counts.min() >= 7
    assert counts.max() <= 9
