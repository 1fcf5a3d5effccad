"""Endless episodes of the T-maze: trial after trial, each like an episode of its own."""

from typing import Any

import numpy as np
import pytest

from engram.envs.t_maze import TMaze, TMazeBatch

UP, DOWN, LEFT, RIGHT, STAY = range(5)
SHORT: dict[str, Any] = {"difficulty": 0, "half_width": 5, "limbo_time": 4, "teleport_delay": 9}


def trial(side: int) -> list[int]:
    """Moves from the room to a pad; the teleporter appears in frame 8, the maze in frame 12."""
    return [UP, UP, *[STAY] * 11, *[(LEFT, RIGHT)[side]] * 2, *[DOWN] * 5]


def test_a_trial_is_an_episode_and_the_next_one_has_another_cue() -> None:
    """Observations and rewards are those of one episode after another with the same goals and speckle."""
    endless, single = TMaze(endless=True, timeout_frames=400, **SHORT), TMaze(**SHORT)
    observation, info = endless.reset(seed=3)
    goals, sides, outcomes = [], [0, 1, 1, 0, 1, 0, 0, 1], []
    for number, side in enumerate(sides):
        expected, _ = single.reset(options={"level": endless.level})
        goals.append(endless.level["goal"])
        outcomes.append(goals[-1] == side)
        over = False
        for action in [*trial(side), STAY, STAY]:
            np.testing.assert_array_equal(observation, expected)
            observation, reward, ended, truncated, info = endless.step(action)
            expected, alone, over, _, alone_info = single.step(action)
            assert not ended
            assert not truncated
            # an episode neither costs anything in its first step nor in its last
            assert reward == alone or (alone, reward) == (0.0, np.float32(-0.001))
        assert over
        assert alone_info["solved"] == info["solved"] == outcomes[-1]
        assert (info["decisions"], info["correct"]) == (number + 1, sum(outcomes))
        assert endless.batch.state.begun[0] == endless.batch.state.frame[0] == (number + 1) * (len(trial(0)) + 2)
    assert len(set(goals)) == 2


def test_an_endless_episode_ends_at_its_last_frame_only() -> None:
    env = TMazeBatch(30, endless=True, timeout_frames=200, **SHORT)
    env.reset(seed=1)
    score, moves = np.zeros(30), [*trial(1), STAY, STAY]
    for frame in range(1, 201):
        _, reward, terminated, truncated, info = env.step(np.full(30, moves[(frame - 1) % len(moves)]))
        score += reward
        assert terminated.all() == terminated.any() == (frame == 200)
        assert not truncated.any()
    assert (info["decisions"] == 200 // len(moves) + (200 % len(moves) > len(trial(1)))).all()
    np.testing.assert_allclose(score, 2 * info["correct"] - info["decisions"] - 0.198, atol=1e-5)
    assert 0 < info["correct"].sum() < info["decisions"].sum()


def test_an_endless_episode_needs_a_last_frame() -> None:
    with pytest.raises(ValueError, match="timeout_frames of an endless episode is -1; allowed: at least 1"):
        TMaze(endless=True, timeout_frames=-1)
