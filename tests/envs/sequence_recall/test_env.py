"""Sequence Recall: its timeline frame by frame, the best possible player over all 256 sequences, and random play."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from engram.envs.sequence_recall import SequenceRecall, SequenceRecallBatch

STAY = 4
NOTHING, WALL, LIGHT, UNLIT, PLAYER = 0, 1, 2, 6, 7
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
FREE = 362
CENTERS = ((8, 4), (3, 10), (8, 16), (13, 10))


def light_at(row: int, col: int) -> int:
    """The light of a cell, or -1: a rectangle of 5 x 3 and one of 3 x 7 around the same center."""
    for light, (r, c) in enumerate(CENTERS):
        down, right = abs(row - r), abs(col - c)
        if (down <= 1 and right <= 3) or (down <= 2 and right <= 1):
            return light
    return -1


@cache
def routes(sequence: tuple[int, ...]) -> dict[tuple[int, int], tuple[int, ...]]:
    """A shortest list of moves to each cell at which the last light of `sequence` can be entered, all others in order.

    A player looks for a light, avoiding the others, or still has to leave the light it is in.
    """
    reached = routes(sequence[:-1]) if len(sequence) > 1 else {(8, 10): ()}
    layers: dict[int, list] = {}
    for cell, moves in reached.items():
        layers.setdefault(len(moves), []).append((cell, len(sequence) == 1, moves))
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    seen, length = set(), min(layers)
    while length in layers or any(key > length for key in layers):
        for cell, seeking, moves in layers.pop(length, []):
            if (cell, seeking) in seen:
                continue
            seen.add((cell, seeking))
            for action, (down, right) in enumerate(STEPS):
                there = cell[0] + down, cell[1] + right
                if not (1 <= there[0] <= 15 and 1 <= there[1] <= 19):
                    continue
                light = light_at(*there)
                if seeking and light == sequence[-1]:
                    found.setdefault(there, (*moves, action))
                elif not seeking or light < 0:
                    layers.setdefault(length + 1, []).append((there, light < 0, (*moves, action)))
        length += 1
    return found


def best_moves(sequence: tuple[int, ...]) -> tuple[int, ...]:
    return min(routes(sequence).values(), key=len)


def film(sequence: list[int], actions: dict[int, int] | None = None, **parameters):
    """Observations of frames 0, 1, ..., rewards (that of frame 0 is 0) and the last info; `actions` by frame."""
    env = SequenceRecall(sequence_length=len(sequence), **parameters)
    observation, _ = env.reset(options={"level": {"sequence": sequence}})
    frames, rewards, over = [observation], [0.0], False
    while not over:
        observation, reward, over, truncated, info = env.step((actions or {}).get(len(frames), STAY))
        assert not truncated
        frames.append(observation)
        rewards.append(reward)
    return np.array(frames), np.array(rewards), info


def on(frame: np.ndarray) -> list[int]:
    """The lights that are on in an observation."""
    return [light for light in range(4) if frame[..., LIGHT + light].any()]


def test_the_expert_over_all_sequences():
    """9 to 21 moves, 15.89 on average, so 4 - 0.005 (362 + moves) = 2.1105 on average."""
    sequences = list(product(range(4), repeat=4))
    plans = [best_moves(sequence) for sequence in sequences]
    moves = np.array([len(plan) for plan in plans])
    assert (moves.min(), moves.max(), round(moves.mean(), 2)) == (9, 21, 15.89)
    env = SequenceRecallBatch(256)
    env.reset(seed=0)
    for index, sequence in enumerate(sequences):
        env.set_level(index, {"sequence": list(sequence)})
    score, lengths = np.zeros(256), np.zeros(256, np.int64)
    correct = np.zeros(256)
    for frame in range(1, FREE + 21 + 3):
        actions = [plan[frame - FREE] if 0 <= frame - FREE < len(plan) else STAY for plan in plans]
        _, reward, terminated, _, info = env.step(np.array(actions))
        score += np.where(lengths == 0, reward, 0.0)
        lengths[terminated & (lengths == 0)] = frame
        if terminated.any():
            assert info["solved"][terminated].all()
            correct[terminated] = info["correct"][terminated]
    np.testing.assert_allclose(score, 4 - 0.005 * (FREE + moves), atol=2e-5)
    assert abs(score.mean() - 2.1105) < 1e-4
    # the last light is entered in frame 361 + moves, and three frames later it is over
    np.testing.assert_array_equal(lengths, FREE - 1 + moves + 3)
    assert (correct == 4).all()


def test_one_light_four_times():
    """Nine moves: in three steps, then out and in again; 2.145."""
    _, rewards, _ = film([0] * 4, {FREE + k: a for k, a in enumerate((2, 2, 2, 3, 2, 3, 2, 3, 2))})
    assert abs(rewards.sum() - 2.145) < 1e-5


def test_random_play_and_waiting():
    env = SequenceRecallBatch(300)
    env.reset(seed=0)
    random = np.random.default_rng(0)
    score, lengths = np.zeros(300), np.zeros(300, np.int64)
    for frame in range(1, 1002):
        _, reward, terminated, _, _ = env.step(random.integers(5, size=300))
        score += np.where(lengths == 0, reward, 0.0)
        lengths[terminated & (lengths == 0)] = frame
    assert abs(score.mean() - -1.14) < 0.15
    assert abs(lengths.mean() - 424) < 15
    _, rewards, info = film([0, 1, 2, 3])
    assert len(rewards) == 1001
    assert abs(rewards.sum() - -4.99) < 1e-4
    assert info == {"solved": False, "correct": 0}


def test_the_demonstration():
    """Light i is on during frames 30 + 90 i to 89 + 90 i; the first two frames cost nothing."""
    frames, rewards, _ = film([2, 0, 3, 3])
    for frame in range(FREE + 5):
        place, within = divmod(frame, 90)
        expected = [[2, 0, 3, 3][place]] if place < 4 and within >= 30 else []
        assert on(frames[frame]) == expected, frame
    assert not rewards[:2].any()
    np.testing.assert_allclose(rewards[2:1000], -0.005, atol=1e-7)
    assert rewards[1000] == 0.0


def test_lights_and_pen_on_the_board():
    frames, _, _ = film([1, 0, 0, 0])
    shape = np.array([[light_at(r, c) for c in range(21)] for r in range(17)])
    assert np.bincount(shape.ravel() + 1).tolist()[1:] == [27] * 4
    pen = np.zeros((17, 21), np.bool_)
    pen[7:10, 9:12] = True
    ring = np.ones((17, 21), np.bool_)
    ring[1:-1, 1:-1] = False
    start = np.zeros((17, 21), np.bool_)
    start[8, 10] = True
    for frame, penned in ((0, True), (FREE - 1, True), (FREE, False)):
        np.testing.assert_array_equal(frames[frame][..., UNLIT], shape >= 0)
        np.testing.assert_array_equal(frames[frame][..., WALL], ring | (pen & ~start) if penned else ring)
        np.testing.assert_array_equal(frames[frame][..., PLAYER], start)
    np.testing.assert_array_equal(frames[30][..., LIGHT + 1], shape == 1)
    np.testing.assert_array_equal(frames[30][..., UNLIT], (shape >= 0) & (shape != 1))
    assert (frames.sum(-1) == 1).all()


def test_the_first_effective_move_is_in_frame_362():
    for frame, moved in ((FREE - 1, False), (FREE, True)):
        frames, _, _ = film([0] * 4, {frame: 0})
        assert frames[frame][7 if moved else 8, 10, PLAYER] == 1


def test_entering_and_leaving():
    """A wrong light goes on too and takes its turn; it goes off when the player stands on floor."""
    moves = {FREE: 2, FREE + 1: 2, FREE + 2: 2, FREE + 3: 2, FREE + 4: 3, FREE + 5: 3, FREE + 6: 2}
    frames, rewards, _ = film([1, 0, 2, 2], moves)
    lit = [on(frame) for frame in frames[FREE : FREE + 8]]
    assert lit == [[], [], [0], [0], [0], [], [0], [0]]
    np.testing.assert_allclose(rewards[FREE + 2], -0.005, atol=1e-7)
    np.testing.assert_allclose(rewards[FREE + 6], 0.995, atol=1e-7)
    for row, col, action in ((1, 10, 0), (15, 10, 1), (8, 1, 2), (8, 19, 3)):
        frames, _, _ = film(
            [0] * 9,
            dict.fromkeys(range(10, 60), action),
            demo_light_on_frames=0,
            timeout_frames=60,
            demo_light_off_frames=0,
            pause_frames=0,
        )
        assert frames[-1][row, col, PLAYER] == 1


SHORT = {"demo_light_on_frames": 3, "demo_light_off_frames": 2, "pause_frames": 1}


def test_the_end_after_the_last_light():
    """Entered in frame F: F + 1 and F + 2 cost, F + 3 ends; the player no longer moves and the light stays on."""
    frames, rewards, info = film([0], {7: 2, 8: 2, 9: 2, 10: 2, 11: 2}, **SHORT)
    np.testing.assert_allclose(rewards[9:], [0.995, -0.005, -0.005, 0.0], atol=1e-7)
    assert info == {"solved": True, "correct": 1}
    assert [on(frame) for frame in frames[9:]] == [[0]] * 4
    assert frames[9:, 8, 7, PLAYER].all()


@pytest.mark.parametrize(
    ("timeout", "length", "last"),
    [
        (12, 12, [0.995, -0.005, -0.005, 0.0]),  # the last light at timeout - 3
        (11, 12, [0.995, -0.005, -0.005, 0.0]),  # at timeout - 2: the end is one frame later
        (10, 10, [0.995, 0.0]),  # at timeout - 1
        (9, 9, [1.0]),  # in the last frame
    ],
)
def test_the_last_light_and_the_time_out(timeout, length, last):
    _, rewards, info = film([0], {7: 2, 8: 2, 9: 2}, timeout_frames=timeout, **SHORT)
    assert len(rewards) - 1 == length
    np.testing.assert_allclose(rewards[9:], last, atol=1e-7)
    assert info["solved"]


def test_every_phase_lasts_two_frames_at_least():
    for n in (0, 1, 2):
        phases = {"demo_light_on_frames": n, "demo_light_off_frames": n, "pause_frames": n}
        frames, _, _ = film([0, 3], {10: 0}, timeout_frames=20, **phases)
        assert [on(frame) for frame in frames[:10]] == [[], [], [0], [0], [], [], [3], [3], [], []]
        assert frames[10][7, 10, PLAYER] == 1


def test_no_time_out():
    env = SequenceRecallBatch(1, timeout_frames=-1)
    env.reset(seed=0)
    assert not any(env.step(np.array([STAY]))[2][0] for _ in range(3000))


def test_the_twin_shows_what_remains():
    frames, _, _ = film([2, 0], {12: 2, 13: 2, 14: 2}, show_sequence=True, **SHORT)
    top = frames[:, 0].argmax(-1)
    remaining = [1] + [LIGHT + 2] * 9 + [LIGHT] * 9 + [1] * 2
    np.testing.assert_array_equal(top[:14], [remaining] * 14)
    np.testing.assert_array_equal(top[14:], [[1] * 10 + [LIGHT] * 9 + [1] * 2] * len(top[14:]))
    plain, _, _ = film([2, 0], {12: 2, 13: 2, 14: 2}, **SHORT)
    np.testing.assert_array_equal(plain[:, 1:], frames[:, 1:])


def test_sequences_are_drawn_evenly():
    env = SequenceRecallBatch(2000)
    env.reset(seed=4)
    drawn = np.array([env.level(i)["sequence"] for i in range(2000)])
    for column in drawn.T:
        counts = np.bincount(column, minlength=4)
        assert len(counts) == 4
        assert np.abs(counts - 500).max() < 4.5 * np.sqrt(500 * 0.75)
    assert len({tuple(row) for row in drawn}) > 240


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sequence_length": 0}, "sequence_length is 0; allowed: at least 1"),
        ({"sequence_length": 20, "show_sequence": True}, r"sequence_length is 20; allowed: 1\.\.19"),
        ({"demo_light_on_frames": -1}, "demo_light_on_frames is -1; allowed: at least 0"),
        ({"demo_light_off_frames": 0.5}, r"demo_light_off_frames is 0\.5; expected an integer"),
        ({"pause_frames": -1}, "pause_frames is -1"),
        ({"timeout_frames": 0}, r"timeout_frames is 0; allowed: -1 \(no timeout\), or at least 1"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        SequenceRecallBatch(2, **parameters)


def test_levels_that_make_no_sense():
    for sequence, message in (([0, 1, 2], "expected 4 integers"), ([0, 1, 2, 4], r"integers in 0\.\.3")):
        with pytest.raises(ValueError, match=message):
            SequenceRecall().reset(options={"level": {"sequence": sequence}})


def test_the_full_picture_shows_the_sequence_too():
    env = SequenceRecallBatch(1)
    env.reset(seed=1)
    assert env.draw(0, full=False).shape == (17 * 24, 21 * 24, 3)
    pictures = []
    for light in range(4):
        env.set_level(0, {"sequence": [light] * 4})
        assert (env.draw(0)[24:] == env.draw(0, full=False)[24:]).all()
        pictures.append(env.draw(0).tobytes())
    assert len(set(pictures)) == 4
