"""Cued Catch: its timeline frame by frame, an expert that remembers, and what random play earns."""

from collections import Counter

import numpy as np
import pytest

from engram.envs.cued_catch import CuedCatch, CuedCatchBatch

UP, DOWN, STAY = 0, 1, 4
NOTHING, PLAYER, CUE, TOP_BALL, BOTTOM_BALL = range(5)
LEVEL = {"balls": [0, 1, 1, 0], "cues": [k % 4 for k in range(101)]}


def film(actions: dict[int, int] | None = None, level: dict | None = None, **parameters):
    """Observations of frames 0, 1, ... and rewards (that of frame 0 is 0); `actions` by frame, else stay."""
    env = CuedCatch(**parameters)
    observation, _ = env.reset(options={"level": level or LEVEL})
    frames, rewards, over = [observation], [0.0], False
    while not over:
        action = (actions or {}).get(len(frames), STAY)
        observation, reward, over, truncated, info = env.step(action)
        assert not truncated
        frames.append(observation)
        rewards.append(reward)
    return np.array(frames), np.array(rewards), info


def cells(frames: np.ndarray, plane: int) -> list[list[tuple[int, int]]]:
    """(row, col) of the cells of a plane, for every frame."""
    return [[(int(r), int(c)) for r, c in np.argwhere(frame[..., plane])] for frame in frames]


def box(top: int, left: int, height: int, width: int) -> set[tuple[int, int]]:
    return {(r, c) for r in range(top, top + height) for c in range(left, left + width)}


MARKS = box(1, 0, 2, 2) | box(1, 10, 2, 2)


class Expert:
    """Plays from the observations alone: it remembers which ball each cue was taught to stand for."""

    def __init__(self) -> None:
        self.meaning: dict[int, int] = {}

    def act(self, planes: np.ndarray) -> int:
        shown = planes[..., CUE]
        cue = int(shown[5].argmax()) // 3
        if shown[1, 0]:
            self.meaning[cue] = 0 if shown[3, 0] else 1
            return STAY
        return (UP, DOWN)[self.meaning[cue]]


@pytest.mark.integration
def test_the_expert_catches_everything():
    """60 points in 739 actions, for all six meanings of the cues."""
    env, meanings = CuedCatch(), set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        expert, score, steps, over = Expert(), 0.0, 0, False
        while not over:
            observation, reward, over, truncated, info = env.step(expert.act(observation))
            score, steps = score + reward, steps + 1
        assert (score, steps, truncated, info) == (60.0, 739, False, {"solved": True, "caught": 100})
        meanings.add(tuple(env.level["balls"]))
    assert len(meanings) == 6


def test_random_play_gets_about_half():
    env = CuedCatchBatch(400)
    env.reset(seed=0)
    random, score = np.random.default_rng(0), np.zeros(400)
    for _ in range(739):
        _, reward, terminated, _, info = env.step(random.integers(5, size=400))
        score += reward
    assert terminated.all()
    # 30 expected; 15 is the variance of 60 fair trials
    assert abs(score.mean() - 30) < 4.5 * np.sqrt(15 / 400)
    assert abs(info["caught"].mean() - 50) < 4.5 * np.sqrt(25 / 400)
    assert not info["solved"].any()


def test_teaching_shows_cues_3_to_0_with_their_balls_and_no_ball():
    frames, rewards, _ = film()
    seen = cells(frames, CUE)
    for frame in range(40):
        cue = 3 - frame // 10
        symbol = box(3, 6 * LEVEL["balls"][cue], 2, 6)
        assert set(seen[frame]) == MARKS | symbol | box(5, 3 * cue, 2, 3), frame
    assert not frames[:40, ..., TOP_BALL:].any()
    assert not rewards[:40].any()


def test_the_first_trial_frame_by_frame():
    """Balls at column 7 in frame 40 and at 3 in frame 44, where they hide the player; back at 8 in frame 46."""
    frames, _, _ = film()
    for frame, column in zip(range(40, 48), (7, 6, 5, 4, 3, 2, 8, 7), strict=True):
        assert cells(frames, TOP_BALL)[frame] == [(1, column)]
        assert cells(frames, BOTTOM_BALL)[frame] == [(2, column)]
        assert cells(frames, PLAYER)[frame] == ([] if frame == 44 else [(1, 3)])
    cues = [set(seen) for seen in cells(frames, CUE)]
    assert cues[40:46] == [box(5, 0, 2, 3)] * 6
    assert cues[46:53] == [box(5, 3, 2, 3)] * 7
    assert (frames.sum(-1) == 1).all()


def test_a_trial_is_judged_every_seven_frames_by_the_move_made_on_seeing_the_balls_at_the_player():
    level = {"balls": [1, 0, 0, 1], "cues": [0] * 4}
    few = {"num_trials": 3, "reward_free_trials": 0}
    for last_move in (45, 52, 59):
        _, rewards, info = film({last_move: DOWN, last_move + 1: UP}, level, **few)
        assert np.flatnonzero(rewards).tolist() == [last_move]
        assert (rewards[last_move], info["caught"], info["solved"]) == (1.0, 1, False)
    _, rewards, _ = film({44: DOWN, 45: UP}, level, **few)
    assert not rewards.any()
    _, rewards, info = film({1: DOWN}, level, **few)
    assert np.flatnonzero(rewards).tolist() == [45, 52, 59]
    assert info == {"solved": True, "caught": 3}


def test_forty_trials_go_unrewarded():
    """First possible reward at frame 325, last at 738, the end without reward at 739."""
    level = {"balls": [0, 0, 1, 1], "cues": [0] * 101}
    frames, rewards, info = film(level=level)
    assert np.flatnonzero(rewards).tolist() == list(range(325, 739, 7))
    assert len(rewards) == 740
    assert info == {"solved": True, "caught": 100}
    level["cues"][-1] = 2
    frames, _, _ = film(level=level)
    assert set(cells(frames, CUE)[739]) == box(5, 6, 2, 3)


def test_left_right_and_stay_do_nothing():
    for action in (2, 3, 4):
        frames, _, _ = film(dict.fromkeys(range(1, 100), action), num_trials=5, reward_free_trials=0, level=SHORT)
        assert frames[:44, 1, 3, PLAYER].all()


SHORT = {"balls": [0, 1, 1, 0], "cues": [1, 2, 3, 0, 1, 2]}


@pytest.mark.parametrize("always", [False, True])
def test_cues_go_off_and_the_twin_shows_their_balls(always):
    frames, _, _ = film(
        level=SHORT,
        num_trials=5,
        reward_free_trials=0,
        initial_cue_duration=2,
        cue_duration=3,
        always_show_ball_symbol=always,
    )
    assert len(frames) == 4 * 2 + 7 * 5
    for frame in range(8, len(frames)):
        # the first trial counts from the end of the teaching, the others from the frame in which the balls jump back
        trial = (frame - 7) // 7
        begun = max(8, 7 + 7 * trial)
        cue = SHORT["cues"][trial]
        shown = box(5, 3 * cue, 2, 3) | (box(3, 6 * SHORT["balls"][cue], 2, 6) if always else set())
        assert set(cells(frames, CUE)[frame]) == (shown if frame < begun + 3 else set()), frame


def test_noise_falls_on_rewarded_trials_only():
    env = CuedCatchBatch(300, num_trials=12, reward_free_trials=2, reward_sigma=0.5)
    env.reset(seed=1)
    rewards = np.zeros((40 + 7 * 12, 300))
    for frame in range(1, len(rewards)):
        rewards[frame] = env.step(np.full(300, STAY))[1]
    judged = [45 + 7 * k for k in range(2, 12)]
    noisy = rewards[judged].ravel()
    assert not np.delete(rewards, judged, axis=0).any()
    # a ball is caught or missed with probability 1/2, so the mean is 1/2 and the variance 1/4 + sigma^2
    assert abs(noisy.mean() - 0.5) < 4.5 * np.sqrt(0.5 / len(noisy))
    assert abs(noisy.var() - 0.5) < 0.07


def test_levels_are_drawn_evenly():
    env = CuedCatchBatch(1200, num_trials=20, reward_free_trials=0)
    env.reset(seed=4)
    meanings = Counter(tuple(env.level(i)["balls"]) for i in range(1200))
    assert len(meanings) == 6
    assert all(sum(meaning) == 2 for meaning in meanings)
    assert max(abs(count - 200) for count in meanings.values()) < 4.5 * np.sqrt(200 * 5 / 6)
    cues = np.array([env.level(i)["cues"] for i in range(1200)])
    assert cues.shape == (1200, 21)
    counts = np.bincount(cues.ravel(), minlength=4)
    assert len(counts) == 4
    assert np.abs(counts - cues.size / 4).max() < 4.5 * np.sqrt(cues.size * 3 / 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"balls": [0, 1, 1]}, r"level\['balls'\] is \[0, 1, 1\]; expected 4 integers"),
        ({"balls": [0, 1, 1, 2]}, r"level\['balls'\].*allowed: integers in 0\.\.1"),
        ({"cues": [0] * 100}, "expected 101 integers"),
        ({"cues": [-1] * 101}, r"integers in 0\.\.3"),
        ({"cues": [0.5] * 101}, "expected 101 integers"),
    ],
)
def test_levels_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        CuedCatch().reset(options={"level": LEVEL | change})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_trials": 0}, "num_trials is 0; allowed: at least 1"),
        ({"initial_cue_duration": 0}, "initial_cue_duration is 0"),
        ({"cue_duration": 1.5}, r"cue_duration is 1\.5; expected an integer"),
        ({"reward_free_trials": 101}, r"reward_free_trials is 101; allowed: 0\.\.100"),
        ({"num_trials": 10}, r"reward_free_trials is 40; allowed: 0\.\.10"),
        ({"reward_sigma": -1.0}, r"reward_sigma is -1\.0; allowed: at least 0"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        CuedCatchBatch(2, **parameters)


def test_pictures_tell_the_moments_apart():
    env = CuedCatchBatch(1, num_trials=5, reward_free_trials=3)
    env.reset(seed=2)
    pictures = {env.draw(0).tobytes()}
    for _ in range(74):
        env.step(np.array([UP]))
        pictures.add(env.draw(0).tobytes())
    assert len(pictures) > 20


def test_only_the_full_picture_shows_the_ball_of_a_trials_cue():
    env = CuedCatchBatch(1, num_trials=5, reward_free_trials=3)
    env.reset(seed=2)
    np.testing.assert_array_equal(env.draw(0), env.draw(0, full=False))
    for _ in range(41):
        env.step(np.array([UP]))
    assert (env.draw(0) != env.draw(0, full=False)).any()


@pytest.mark.parametrize("num_cues", [1, 2, 3])
def test_fewer_cues(num_cues: int):
    """Only the first cues are taught and asked for, for `num_cues` cues' time; their balls are those that four have."""
    env, whole = CuedCatch(num_cues=num_cues, initial_cue_duration=3), CuedCatch()
    asked, meanings = set(), set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        whole.reset(seed=seed)
        assert env.level["balls"] == whole.level["balls"]
        expert, taught, score, steps, over = Expert(), [], 0.0, 0, False
        while not over:
            if observation[1, 0, CUE]:
                taught.append(int(observation[5, :, CUE].argmax()) // 3)
            observation, reward, over, _, info = env.step(expert.act(observation))
            score, steps = score + reward, steps + 1
        assert taught == [cue for cue in reversed(range(num_cues)) for _ in range(3)]
        assert (score, steps, info["solved"]) == (60.0, 3 * num_cues + 699, True)
        asked |= set(env.level["cues"])
        meanings.add(tuple(env.level["balls"][:num_cues]))
    assert asked == set(range(num_cues))
    assert len(meanings) == {1: 2, 2: 4, 3: 6}[num_cues]
    with pytest.raises(ValueError, match=r"num_cues is 5; allowed"):
        CuedCatch(num_cues=5)
