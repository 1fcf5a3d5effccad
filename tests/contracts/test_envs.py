"""The contract of every environment, over everything registered: a new environment is tested by being registered."""

import inspect
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import error
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from engram.envs.engine import BatchedEnv
from engram.envs.registration import (
    ENVIRONMENTS,
    batch_class,
    environment_names,
    environment_parameters,
    find_environment,
    make_batch,
)
from engram.envs.single import SingleEnv

NAMES = environment_names()
LONG = 1100
"""Steps that see the end of an episode in every environment under random actions."""

every_environment = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.integration] * name.endswith("-twin")) for name in NAMES]
)
engine = pytest.mark.parametrize("name", ["boxworld", "popgym-battleship"])
"""For what the engine does alike in every environment."""


class Record(NamedTuple):
    """Outputs of T steps of N copies; observation has the shape [T, N, ...]."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def draw_actions(env: BatchedEnv, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(env.single_action_space.n, size=(steps, env.num_envs))


def record(env: BatchedEnv, actions: np.ndarray) -> Record:
    steps, num_envs = actions.shape
    shape = (steps, num_envs, *env.single_observation_space.shape)
    rows = Record(
        np.zeros(shape, env.single_observation_space.dtype),
        np.zeros(actions.shape, np.float32),
        np.zeros(actions.shape, np.bool_),
        np.zeros(actions.shape, np.bool_),
    )
    for t in range(steps):
        env.step_into(actions[t], *(leaf[t] for leaf in rows))
    return rows


def assert_same(one: Any, other: Any) -> None:
    """Equal arrays, or dicts and sequences of them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, Record):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_array_equal(one, other)


def made(name: str, num_envs: int = 4, seed: int = 1, first_index: int = 0, **parameters: Any) -> BatchedEnv:
    env = make_batch(name, num_envs, first_index, **parameters)
    env.reset(seed=seed)
    return env


def single(name: str, **parameters: Any) -> SingleEnv:
    environment, twin = find_environment(name)
    return gymnasium.make(environment.id, disable_env_checker=True, **twin, **parameters).unwrapped  # pyright: ignore


@pytest.mark.integration
@every_environment
@pytest.mark.filterwarnings("error")
def test_gymnasium_accepts_it(name):
    check_env(single(name, render_mode="rgb_array"))


@every_environment
def test_gymnasium_makes_it_batched(name):
    environment, twin = find_environment(name)
    env = gymnasium.make_vec(environment.id, num_envs=3, **twin).unwrapped
    assert isinstance(env, batch_class(environment))
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, info = env.reset(seed=7)
    assert info == {}
    assert observation in env.observation_space
    np.testing.assert_array_equal(observation, made(name, 3, seed=7).observe_all())


@every_environment
def test_observations_and_rewards_keep_to_their_spaces(name):
    env = made(name)
    space = env.single_observation_space
    seen = record(env, draw_actions(env, LONG))
    assert space.dtype in (np.uint8, np.float32)
    assert seen.observation.min() >= space.low.min()
    assert seen.observation.max() <= space.high.max()
    assert all(row in env.observation_space for row in seen.observation[:: LONG // 20])
    assert np.isfinite(seen.reward).all()
    assert not (seen.terminated & seen.truncated).any()
    assert (seen.terminated | seen.truncated).any(0).all()


@every_environment
def test_a_seed_fixes_everything(name):
    env = made(name)
    actions = draw_actions(env, 200)
    first = record(env, actions)
    env.reset(seed=1)
    assert_same(record(env, actions), first)
    env.reset(seed=2)
    assert (record(env, actions).observation != first.observation).any()
    assert (first.observation[:, :1] != first.observation[:, 1:]).any()


@every_environment
def test_the_split_over_batches_changes_nothing(name):
    whole = made(name, 5)
    actions = draw_actions(whole, 200)
    expected = record(whole, actions)
    for start, stop in ((0, 2), (2, 5)):
        part = record(made(name, stop - start, first_index=start), actions[:, start:stop])
        assert_same(part, Record(*(leaf[:, start:stop] for leaf in expected)))


@every_environment
def test_saved_copies_continue_exactly(name):
    env, other = made(name), make_batch(name, 4)
    actions = draw_actions(env, LONG + 17)
    record(env, actions[:17])
    saved = env.save()
    expected = record(env, actions[17:])
    other.restore(saved)
    assert_same(record(other, actions[17:]), expected)
    with pytest.raises(ValueError, match="saved state of"):
        make_batch(name, 3).restore(saved)


@every_environment
def test_one_environment_is_a_batch_of_one(name):
    alone, batch = single(name), made(name, 1, seed=3)
    actions = draw_actions(batch, LONG)
    seen = record(batch, actions)
    observation, info = alone.reset(seed=3)
    assert set(info) == set(batch.episode_fields)
    over = False
    for t in range(LONG):
        if over:
            (observation, _), reward, terminated, truncated = alone.reset(), 0.0, False, False
        else:
            observation, reward, terminated, truncated, _ = alone.step(int(actions[t, 0]))
        np.testing.assert_array_equal(observation, seen.observation[t, 0])
        assert (reward, terminated, truncated) == tuple(leaf[t, 0] for leaf in seen[1:])
        over = terminated or truncated


@every_environment
def test_next_step_autoreset(name):
    env = made(name)
    ended, t, actions = np.zeros(4, np.bool_), 0, draw_actions(env, LONG)
    while not ended.any():
        observation, _, terminated, truncated, info = env.step(actions[t])
        ended, t = terminated | truncated, t + 1
    for field in env.episode_fields:
        np.testing.assert_array_equal(info[f"_{field}"], ended)
        np.testing.assert_array_equal(info[field][~ended], 0)
        k = env.episode_fields.index(field)
        np.testing.assert_array_equal(info[field][ended], env.episode_facts(np.flatnonzero(ended))[:, k])
    np.testing.assert_array_equal(observation, env.observe_all())
    saved, nexts = env.save(), []
    for action in (0, env.single_action_space.n - 1):
        env.restore(saved)
        after, reward, terminated, truncated, info = env.step(np.full(4, action))
        assert not np.stack([reward, terminated, truncated])[:, ended].any()
        nexts.append(after[ended])
    np.testing.assert_array_equal(nexts[0], nexts[1])


@every_environment
def test_an_episode_that_is_cut_ends_there(name):
    """The next step begins a new one, as after an end of its own; the others go on as if nothing had been cut."""
    env, where = made(name), np.array([False, True, False, True])
    for actions in draw_actions(env, 5):
        env.step(actions)
    saved, actions = env.save(), draw_actions(env, 1)[0]
    expected = env.step(actions)
    env.restore(saved)
    begun, _ = env.reset()  # new episodes from the same streams
    env.restore(saved)
    env.cut(where)
    observation, *flags, _ = env.step(actions)
    np.testing.assert_array_equal(observation[where], begun[where])
    np.testing.assert_array_equal(observation[~where], expected[0][~where])
    for new, old in zip(flags, expected[1:4], strict=True):
        np.testing.assert_array_equal(new, np.where(where, 0, old))


@every_environment
def test_levels_can_be_read_and_forced(name):
    env, other = made(name), single(name)
    for index in range(4):
        level = env.level(index)
        observation, _ = other.reset(seed=90, options={"level": level})
        np.testing.assert_array_equal(observation, env.observe_all()[index])
        assert_same(other.level, level)
    env.set_level(2, env.level(0))
    np.testing.assert_array_equal(*env.observe_all()[[2, 0]])


@every_environment
def test_pictures(name):
    env = made(name, render_mode="rgb_array")
    for picture in (*env.render(), env.draw(0, full=False)):
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert min(picture.shape[:2]) >= 100
        assert picture.std() > 0
    assert made(name).render() is None


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=lambda environment: environment.name)
def test_numbers_that_compiled_code_cannot_count_are_named(environment):
    for key, parameter in environment_parameters(environment).items():
        if type(parameter.default) is int:
            with pytest.raises(ValueError, match=f"{key} is {10**30}; allowed: "):
                make_batch(environment.name, 1, **{key: 10**30})
    made(environment.name).reset(seed=10**30)


@pytest.mark.parametrize(
    "environment",
    [environment for environment in ENVIRONMENTS.values() if environment.twin],
    ids=lambda environment: environment.name,
)
def test_a_twin_differs_in_what_it_shows_only(environment):
    env, twin = made(environment.name), made(f"{environment.name}-twin")
    actions = draw_actions(env, LONG)
    one, other = record(env, actions), record(twin, actions)
    assert one.observation.shape != other.observation.shape or (one.observation != other.observation).any()
    for a, b in zip(one[1:], other[1:], strict=True):
        np.testing.assert_array_equal(a, b)


@every_environment
def test_bad_actions_change_nothing(name):
    env = made(name)
    before, n = env.save(), env.single_action_space.n
    for actions, message in (
        (np.array([0, 0, n, 0]), rf"action {n} for environment 2; allowed: 0\.\.{n - 1}"),
        (np.array([0, -1, 0, 0]), "action -1 for environment 1"),
        (np.array([0, 2**40, 0, 0]), "for environment 1"),
        (np.zeros(4), r"actions is an array of float64 \(4,\); expected integers \(4,\)"),
        (np.zeros(3, np.int64), "actions is an array of int64"),
        (np.zeros((4, 1), np.int32), "actions is an array"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    assert_same(env.save(), before)
    alone = single(name)
    alone.reset(seed=0)
    for action in (-1, n, 0.5):
        with pytest.raises(ValueError, match="action"):
            alone.step(action)  # pyright: ignore[reportArgumentType]


@engine
def test_nothing_works_before_the_first_reset(name):
    env, alone = make_batch(name, 4), single(name)
    with pytest.raises(error.ResetNeeded):
        env.step(np.zeros(4, np.int64))
    with pytest.raises(error.ResetNeeded):
        alone.step(0)


@engine
def test_impossible_parameters_are_named(name):
    for num_envs, first_index, render_mode, message in (
        (0, 0, None, "num_envs is 0; allowed: at least 1"),
        (2, -1, None, "first_index is -1"),
        (2, 0, "tape", "render_mode is 'tape'; allowed: None, 'rgb_array'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_batch(name, num_envs, first_index, render_mode=render_mode)
    parameter = next(iter(environment_parameters(find_environment(name)[0])))
    with pytest.raises(ValueError, match=f"no parameter '{parameter}x'; did you mean: .*{parameter}"):
        make_batch(name, 2, **{f"{parameter}x": 1})
    with pytest.raises(ValueError, match="seed is -1"):
        made(name).reset(seed=-1)


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=lambda environment: environment.name)
def test_documentation_names_every_parameter_and_action(environment):
    batch = batch_class(environment)
    one = getattr(inspect.getmodule(batch), environment.class_name)
    assert one.batch_class is batch
    assert len(batch.action_names) == made(environment.name).single_action_space.n
    for name, parameter in environment_parameters(environment).items():
        assert parameter.default is not inspect.Parameter.empty
        assert name in batch.__doc__
        assert name in one.__doc__


def test_unknown_environments_are_answered_with_known_ones():
    with pytest.raises(ValueError, match="unknown environment 'boxwurld'; did you mean: boxworld"):
        make_batch("boxwurld", 1)
    with pytest.raises(ValueError, match="unknown environment"):
        find_environment("-twin")


# -- levels, names and saves that make no sense ----------------------------------------------------------------------


@engine
def test_levels_and_options_are_known_by_name(name):
    env, alone = made(name, 2), single(name)
    level = env.level(0)
    key = next(iter(level))
    wrong = {key[:-1] + "_": level[key]} | level
    missing = {other: value for other, value in level.items() if other != key}
    for given, message in ((wrong, f"has no key '{key[:-1]}_'; did you mean: .*{key}"), (missing, f"has no '{key}'")):
        with pytest.raises(ValueError, match=message):
            alone.reset(seed=0, options={"level": given})
    with pytest.raises(ValueError, match="reset has no option 'level'"):
        env.reset(options={"level": level})
    with pytest.raises(ValueError, match="reset has no option 'lvel'; did you mean: level"):
        alone.reset(options={"lvel": level})
    with pytest.raises(ValueError, match=r"index is 2; allowed: 0\.\.1"):
        env.set_level(2, level)


@engine
def test_a_batch_takes_one_seed_for_each_environment_and_a_mask(name):
    env, other, alone = made(name, 3, seed=1), made(name, 3, seed=2), single(name)
    before = other.observe_all()
    started, _ = other.reset(seed=[5, None, 6], options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(started[0], alone.reset(seed=5)[0])
    np.testing.assert_array_equal(started[1:], before[1:])
    np.testing.assert_array_equal(env.reset(seed=[6, 5, 5])[0][2], started[0])
    for given, message in (
        ({"seed": [1, 2]}, "2 seeds for 3 environments"),
        ({"seed": [1, -1, 1]}, "seed of environment 1 is -1"),
        ({"options": {"reset_mask": [1, 0, 0]}}, r"reset_mask is an array of int64 \(3,\); expected bool \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            env.reset(**given)
    with pytest.raises(error.ResetNeeded):
        make_batch(name, 2).reset(options={"reset_mask": np.array([True, False])})


@engine
def test_values_of_another_form_are_no_level(name):
    alone = single(name)
    alone.reset(seed=0)
    for given in (None, 3, [1], dict.fromkeys(alone.level, 3), dict.fromkeys(alone.level)):
        with pytest.raises(ValueError, match="level"):
            alone.reset(options={"level": given})


@engine
def test_a_level_comes_after_the_first_reset(name):
    """The other copies would play zeroed memory."""
    level, env = made(name).level(0), make_batch(name, 2)
    with pytest.raises(error.ResetNeeded):
        env.set_level(0, level)
    with pytest.raises(error.ResetNeeded):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(error.ResetNeeded):
        env.observe_all()


LARGER = {
    "boxworld": {"max_steps": 500},
    "mini-pacman": {"ghost_speed": 0.1},
    "maze": {"size": 21},
    "pomdp-graph": {"num_graphs": 30},
    "cued-catch": {"initial_cue_duration": 20},
    "t-maze": {"difficulty": 5},
    "sequence-recall": {"demo_light_on_frames": 90},
}


@pytest.mark.parametrize("name", LARGER)
def test_a_save_of_other_parameters_is_refused(name):
    """Of equal shape, but with places that lie outside a smaller environment."""
    env = made(name)
    larger = made(name, **LARGER[name])
    before = env.save()
    with pytest.raises(ValueError, match="different parameters"):
        env.restore(larger.save())
    assert_same(env.save(), before)
    later = made(name, first_index=2)
    later.restore(before)  # where a part of a batch begins says nothing of its rules


@engine
def test_the_nearest_parameter_is_named(name):
    environment, _ = find_environment(name)
    known = next(iter(environment_parameters(environment)))
    wrong = {known[:-1] + "_": 1}
    for make in (
        lambda: gymnasium.make(environment.id, **wrong),
        lambda: gymnasium.make_vec(environment.id, num_envs=2, **wrong),
        lambda: batch_class(environment)(2, **wrong),
    ):
        with pytest.raises(ValueError, match=f"no parameter '{known[:-1]}_'; did you mean: .*{known}"):
            make()
    with pytest.raises(ValueError, match="no parameter 'num_envs'"):
        gymnasium.make(environment.id, num_envs=2)
    for number, message in ((-1, "num_envs is -1; allowed: at least 1"), (2.0, "num_envs is 2.0; expected an integer")):
        with pytest.raises(ValueError, match=message):
            gymnasium.make_vec(environment.id, num_envs=number)


@engine
def test_bad_calls_are_explained(name):
    env, alone = made(name), single(name)
    with pytest.raises(ValueError, match=r"seed is 1\.5; expected an integer"):
        env.reset(seed=1.5)  # pyright: ignore[reportArgumentType]
    alone.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions is an array of int64 \(2,\)"):
        alone.step([1, 2])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "environment",
    [environment for environment in ENVIRONMENTS.values() if environment.twin],
    ids=lambda environment: environment.name,
)
def test_a_switch_is_true_or_false(environment):
    for key, value in environment.twin.items():
        if value is True:
            with pytest.raises(ValueError, match=f"{key} is 2; allowed: True, False"):
                make_batch(environment.name, 1, **{key: 2})
