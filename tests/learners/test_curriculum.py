"""A stage is left by success, or where it was asked for after so many steps, and not otherwise."""

import math
from typing import Any

import numpy as np
import pytest

from engram.actors.levels.config import LevelsConfig
from engram.learners.curriculum import Curriculum

TWO_EASIER: dict[str, Any] = {"curriculum": {"limbo_time": [20, 80]}, "curriculum_episodes": 4}
THREE = LevelsConfig(**TWO_EASIER)


def episodes(*solved, env=None):
    """Rows env_index, return, length, solved, finished; the environments in turn, or all of the same one."""
    return np.array(
        [[i if env is None else env, -1.0, 50.0, s, 1.0] for i, s in enumerate(solved)], np.float32
    ).reshape(-1, 5)


def curriculum(config=THREE, num_envs=2):
    return Curriculum(config, ("solved", "finished"), num_envs)


def test_the_next_stage_begins_at_the_score_and_not_before() -> None:
    levels = curriculum(LevelsConfig(curriculum={"x": [1, 2]}, curriculum_episodes=4, curriculum_score=(0.75,)))
    assert not levels.add(episodes(1, 1, 1), 0), "three of four episodes"
    assert not levels.add(episodes(0, 0), 0), "half of the last four are solved"
    assert not levels.add(episodes(), 0)
    assert levels.stage == 0
    assert levels.add(episodes(1, 1, 1), 0)
    assert levels.stage == 1
    assert levels.metrics() == {"curriculum/stage": 2.0}, "episodes of the stage before do not count"
    assert not levels.add(episodes(1, 1, 1), 0)
    assert levels.add(episodes(1), 0)
    assert levels.is_last
    assert not levels.add(episodes(1, 1, 1, 1, 1), 0), "there is no stage after the last"
    assert levels.stage == 2


def test_environments_that_have_ended_no_episode_are_waited_for() -> None:
    """The first to end are the short ones, which are the solved ones."""
    levels = curriculum(num_envs=3)
    assert not levels.add(episodes(1, 1, 1, 1, 1, 1, env=0), 0)
    assert not levels.add(episodes(1, 1), 0)
    assert levels.add(episodes(1, env=2), 0)


def test_after_all_environments_began_anew_all_are_waited_for_again() -> None:
    levels = curriculum(num_envs=3)
    assert not levels.add(episodes(0, 0, 0), 0)
    levels.begin_episodes()
    assert not levels.add(episodes(1, 1, 1, 1, env=0), 0)
    assert not levels.add(episodes(1, 1), 0)
    assert levels.add(episodes(1, env=2), 0)


def test_each_stage_may_have_a_score_of_its_own_and_any_measure() -> None:
    scores = {"curriculum_score": (-2.0, 60.0), "curriculum_measure": "length", "curriculum_episodes": 1}
    levels = curriculum(LevelsConfig(curriculum={"x": [1, 2]}, **scores), num_envs=0)
    assert levels.add(episodes(0), 0)
    assert not levels.add(episodes(1), 0)


def test_episodes_that_do_not_tell_the_measure_are_counted() -> None:
    levels = curriculum()
    assert not levels.add(episodes(math.nan, math.nan, math.nan, math.nan, math.nan), 0)
    assert (levels.unknown, levels.metrics()) == (5, {"curriculum/stage": 1.0})
    assert not levels.add(episodes(math.nan, 1), 0)
    assert levels.unknown == 0


def test_a_stage_that_is_not_learned_is_left_after_its_steps_where_that_was_asked_for() -> None:
    config = LevelsConfig(curriculum={"x": [1, 2]}, curriculum_episodes=4, curriculum_steps=1000)
    levels, patient = curriculum(config), curriculum()
    levels.add(episodes(1, 1, 1, 1), 100)
    assert levels.stage == 1
    assert not levels.add(episodes(0, 0), 1099), "the steps of the stage before do not count"
    assert levels.add(episodes(), 1100)
    assert levels.is_last
    assert not levels.add(episodes(0), 10_000), "the environment as asked for is not left"
    assert not patient.add(episodes(0, 0), 10_000_000)


def test_a_decision_does_not_depend_on_a_stop() -> None:
    by_score, by_steps = curriculum, lambda: curriculum(LevelsConfig(**TWO_EASIER, curriculum_steps=40))
    for make, solved in ((by_score, 1), (by_steps, 0)):
        whole, first, second = (make() for _ in range(3))
        for levels in (whole, first):
            levels.add(episodes(1, 1, 1, 1), 10)
            levels.add(episodes(1, 0, 1), 11)
        second.load_state_dict(first.state_dict())
        for steps in (20, 40, 50):
            assert whole.add(episodes(solved), steps) == second.add(episodes(solved), steps)
            assert whole.state_dict() == second.state_dict()
        assert whole.is_last


def test_a_checkpoint_from_before_stages_had_a_length_goes_on_in_its_stage() -> None:
    first, second = curriculum(), curriculum()
    assert first.add(episodes(1, 1, 1, 1), 900)
    older = first.state_dict()
    del older["began"]
    second.load_state_dict(older)
    assert second.stage == 1
    assert not second.add(episodes(0, 0, 0, 0), 10**9), "no stage has a length in its configuration"
    assert second.add(episodes(1, 1, 1, 1), 10**9 + 40)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"curriculum": {"a": [1, 2], "b": [1]}}, "different numbers of stages: a 2, b 1"),
        ({"curriculum": {"a": []}}, "at least one value"),
        ({"curriculum": {"a": [1, 2, 3]}, "curriculum_score": (1.0, 2.0)}, "curriculum_score has 2 .* 1 or 3"),
        ({"curriculum_episodes": 0}, "curriculum_episodes is 0; allowed: at least 1"),
        ({"curriculum_steps": -1}, "curriculum_steps is -1; allowed: at least 0"),
    ],
)
def test_a_mistake_is_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        LevelsConfig(**settings)


def test_an_unknown_measure_has_its_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"unknown curriculum_measure 'solve'; did you mean: solved\?"):
        curriculum(LevelsConfig(curriculum={"a": 1}, curriculum_measure="solve"))


def test_values_are_lists_words_or_one_alone() -> None:
    given = {"a": [[1], [1, 2]], "b": "True,x"}
    assert LevelsConfig(curriculum=given).stages == ({"a": [1], "b": True}, {"a": [1, 2], "b": "x"}, {})
    assert LevelsConfig(curriculum={"a": 1}).stages == ({"a": 1}, {})
    assert LevelsConfig().stages == ({},)
