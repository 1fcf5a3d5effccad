"""A stage is left by success, or where it was asked for after so many steps, and not otherwise."""

import json
import math
from typing import Any

import numpy as np
import pytest

from engram.actors.levels import LevelsConfig, widths
from engram.learners.curriculum import Curriculum, Mixture, make_curriculum

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


def test_environments_that_were_lost_are_not_waited_for() -> None:
    levels = curriculum(num_envs=3)
    assert not levels.add(episodes(1, 1, 1, 1, env=0), 0)
    levels.note_environments(2)  # environment 2 has not ended an episode
    assert not levels.add(episodes(1), 0), "environment 1 is still there"
    assert levels.add(episodes(1, env=1), 0)


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
    assert not levels.add(episodes(0), 10_000), "the target environment is not left"
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
        ({"curriculum": {"a": [1, 2], "b": [1]}}, "allowed: the same number of values for each parameter"),
        ({"curriculum": {"a": []}}, "values for each parameter, at least one"),
        ({"curriculum": {"a": [1, 2, 3]}, "curriculum_score": (1.0, 2.0)}, "curriculum_score has 2 .* 1 or 3"),
        ({"curriculum_episodes": 0}, r"curriculum_episodes is 0; allowed: 1\.\."),
        ({"curriculum_steps": -1}, r"curriculum_steps is -1; allowed: 0\.\."),
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


def mixture(num_actors: int = 1, actor_envs: int = 20, **settings: Any) -> Mixture:
    config = LevelsConfig(curriculum={"x": [1]}, **({"curriculum_mixture": 0.2, "curriculum_episodes": 20} | settings))
    found = make_curriculum(config, ("solved", "finished"), num_actors, actor_envs)
    assert isinstance(found, Mixture)
    return found


def by_stage(levels: Mixture, *rates: float) -> np.ndarray:
    """An episode of each of 20 environments, as many solved in each stage as its rate says."""
    counts = widths(0, 20, levels.stage)
    solved = [place < round(rate * count) for rate, count in zip(rates, counts, strict=True) for place in range(count)]
    return episodes(*map(float, solved))


def test_shares_follow_what_can_be_learned_and_no_stage_is_left_for_good() -> None:
    levels = mixture()
    assert levels.stage == (0.5, 0.5)
    assert not levels.add(by_stage(levels, 0.5, 0.5), 0), "both stages teach as much"
    assert not levels.add(by_stage(levels, 1, 0)[:19], 0), "one environment has ended no episode"
    for _ in range(3):
        levels.add(by_stage(levels, 1, 0.5), 0)
    assert levels.stage == pytest.approx((0.1, 0.9), abs=0.1)
    assert min(levels.stage) >= 0.1
    for _ in range(12):
        levels.add(by_stage(levels, 1, 1), 0)
    assert levels.stage == (0.5, 0.5), "nothing is left to learn in either"


def test_a_mixture_that_is_loaded_goes_on_as_the_other_one_would() -> None:
    going, loaded = mixture(), mixture()
    going.add(by_stage(going, 1, 0.5), 0)
    going.add(by_stage(going, 0.5, 0.25)[:7], 0)
    loaded.load_state_dict(json.loads(json.dumps(going.state_dict())))
    rest = by_stage(going, 0.25, 1)
    assert going.add(rest, 0) == loaded.add(rest, 0)
    assert (going.stage, going.metrics()) == (loaded.stage, loaded.metrics())


def test_actors_together_have_the_shares_and_each_environment_one_stage() -> None:
    shares = (0.1, 0.3, 0.6)
    counts = np.sum([widths(actor * 4, 4, shares) for actor in range(50)], 0)
    assert counts.tolist() == pytest.approx([20, 60, 120], abs=2)
    assert all(sum(widths(actor * 4, 4, shares)) == 4 for actor in range(50))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"curriculum_mixture": 1.5}, "curriculum_mixture is 1.5"),
        ({"curriculum_measure": "return"}, "curriculum_measure is return; allowed with curriculum_mixture: solved"),
        ({"level_replay": 0.5}, "level_replay is 0.5; allowed with curriculum_mixture: 0"),
        ({"curriculum": {}}, "curriculum is {}; allowed with curriculum_mixture: at least one easier stage"),
    ],
)
def test_a_mixture_of_what_cannot_be_mixed_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LevelsConfig(**({"curriculum": {"x": [1]}, "curriculum_mixture": 0.2} | words))
