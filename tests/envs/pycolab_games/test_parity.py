"""The compiled environments equal the games on the pycolab engine, frame by frame, in everything an agent can see."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from engram.envs.pycolab_games import GAMES, make_game, planes
from engram.envs.registration import make_batch

STEPS = 20_000
"""Steps compared for each game, shared by its cases."""


class Case(NamedTuple):
    """A share of the steps, how likely the random player changes its mind, and parameters."""

    name: str
    share: float
    turns: float
    parameters: dict[str, Any]


SHORT_CATCH = {"num_trials": 4, "initial_cue_duration": 3, "cue_duration": 3, "reward_free_trials": 1}
SHORT_RECALL = {"demo_light_on_frames": 3, "demo_light_off_frames": 1, "pause_frames": 4, "timeout_frames": 150}
WAIT = {"teleport_delay": 6, "timeout_frames": 200}
CASES = [
    Case("cued-catch", 0.6, 1.0, {}),
    Case("cued-catch", 0.2, 1.0, SHORT_CATCH),
    Case("cued-catch", 0.2, 0.5, SHORT_CATCH | {"num_cues": 2}),
    Case("cued-catch-twin", 0.2, 0.5, SHORT_CATCH | {"reward_free_trials": 4, "cue_duration": 1}),
    Case("sequence-recall", 0.5, 1.0, {}),
    Case("sequence-recall", 0.1, 0.4, SHORT_RECALL),
    Case("sequence-recall", 0.1, 0.4, SHORT_RECALL | {"timeout_frames": -1, "sequence_length": 1}),
    Case("sequence-recall-twin", 0.2, 0.4, SHORT_RECALL | {"timeout_frames": 60, "sequence_length": 2}),
    Case("sequence-recall-twin", 0.1, 0.4, SHORT_RECALL | {"timeout_frames": 700, "sequence_length": 7}),
    Case("t-maze", 0.4, 1.0, {}),
    Case("t-maze", 0.1, 0.3, WAIT | {"difficulty": 0, "limbo_time": 10}),
    Case("t-maze", 0.1, 0.3, WAIT | {"difficulty": 3, "limbo_time": 0, "half_width": 4, "teleport_delay": 0}),
    Case("t-maze", 0.1, 0.3, WAIT | {"difficulty": 4, "limbo_time": 2, "half_width": 5, "teleport_delay": 1}),
    Case("t-maze-twin", 0.1, 0.3, {"difficulty": 1, "limbo_time": 3, "half_width": 6, "timeout_frames": -1}),
    Case("t-maze", 0.25, 0.05, WAIT | {"difficulty": 5, "limbo_time": 3, "timeout_frames": 600}),
    Case("t-maze", 0.25, 0.05, WAIT | {"difficulty": 0, "limbo_time": 4, "half_width": 92, "timeout_frames": 600}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_game_and_the_engine_agree(case):
    env, random = make_batch(case.name, 1, **case.parameters), np.random.default_rng(3)
    observation, reward = env.new_observation(), np.zeros(1, np.float32)
    terminated, truncated = np.zeros((2, 1), np.bool_)
    env.reset_into(observation, seed=3)
    steps, action, rewards = 0, np.zeros(1, np.int64), set()
    while steps < case.share * STEPS:
        game = make_game(case.name, env.level(0), **case.parameters)
        seen, _, _ = game.its_showtime()
        while not game.game_over:
            assert np.array_equal(planes(case.name, seen.board), observation[0])
            if random.random() < case.turns:
                action[0] = random.integers(5)
            seen, paid, discount = game.play(int(action[0]))
            env.step_into(action, observation, reward, terminated, truncated)
            assert np.float32(paid or 0.0) == reward[0], game.the_plot.frame
            assert (discount == 0.0, False) == (terminated[0], truncated[0]), game.the_plot.frame
            rewards.add(float(reward[0]))
            steps += 1
        assert np.array_equal(planes(case.name, seen.board), observation[0])
        env.step_into(action, observation, reward, terminated, truncated)
    if case.parameters and case.parameters.get("reward_free_trials") != 4:
        assert max(rewards) > 0.9, "nothing of interest happened"


def test_every_game_is_compared_over_enough_steps():
    for name in GAMES:
        assert sum(case.share for case in CASES if case.name.removesuffix("-twin") == name) >= 1 - 1e-9


def test_a_game_draws_a_level_and_refuses_what_the_environment_refuses():
    first, second = (make_game("t-maze", None) for _ in range(2))
    boards = [game.its_showtime()[0].board.copy() for game in (first, second)]
    assert boards[0].shape == boards[1].shape == (7, 11)
    for name, parameters, message in (
        ("boxworld", {}, "no pycolab game of 'boxworld'; available: cued-catch, t-maze, sequence-recall"),
        ("t-maze", {"limbo_time": 1}, "limbo_time is 1"),
        ("t-maze", {"limbo": 1}, "no parameter 'limbo'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_game(name, None, **parameters)
    with pytest.raises(ValueError, match="sequence"):
        make_game("sequence-recall", {"sequence": [4, 0, 0, 0]})


SHORT = {
    "cued-catch": SHORT_CATCH,
    "sequence-recall-twin": SHORT_RECALL | {"timeout_frames": 30},
    "t-maze": {"difficulty": 0, "half_width": 5, "limbo_time": 4, "teleport_delay": 1, "timeout_frames": 40},
}


@pytest.mark.parametrize("name", SHORT)
def test_the_engine_is_selectable(name: str) -> None:
    """Batches of games: the compiled environment's results, also where episodes end, are cut short and begin."""
    random, rows = np.random.default_rng(0), list[list[np.ndarray]]()
    actions = random.integers(5, size=(90, 3))
    for engine in ("compiled", "pycolab"):
        env = make_batch(name, 3, engine=engine, **SHORT[name])
        observation, reward, ends = env.new_observation(), np.zeros(3, np.float32), np.zeros((2, 3), np.bool_)
        env.reset_into(observation, 5)
        seen = [observation.copy()]
        for t in range(90):
            if t == 20:
                env.cut(np.arange(3) == 1)
            env.step_into(actions[t], observation, reward, *ends)
            seen += [observation.copy(), reward.copy(), ends.copy(), env.episode_facts(np.arange(3))]
        rows.append(seen)
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sum(each.any() for each in rows[0][3::4]) > 1, "episodes must end"


def test_mistakes_with_an_engine_are_named() -> None:
    with pytest.raises(ValueError, match="engine is 'pycollab'; allowed: 'compiled', 'pycolab'"):
        make_batch("t-maze", 1, engine="pycollab")
    with pytest.raises(ValueError, match="parameter 'engine'"):
        make_batch("maze", 1, engine="pycolab")
    endless = make_batch("t-maze", 1, engine="pycolab", endless=True)
    with pytest.raises(ValueError, match="endless is True; allowed"):
        endless.reset_into(endless.new_observation())
    with pytest.raises(ValueError, match="cannot be saved"):
        make_batch("t-maze", 1, engine="pycolab").save()
