"""The T-maze: its map, its timeline frame by frame, the best possible player, and what random play earns."""

import numpy as np
import pytest

from engram.envs.t_maze import TMaze, TMazeBatch
from engram.envs.t_maze.rules import draw_map, maze_at

UP, DOWN, LEFT, RIGHT, STAY = range(5)
NOTHING, WALL, PLAYER, CUE, PAD = range(5)
CLEAR = np.zeros((77, 191), np.bool_)
"""No speckle."""
NEVER = {"timeout_frames": -1}


def level(goal: int, speckle: np.ndarray = CLEAR) -> dict:
    return {"goal": goal, "speckle": speckle}


class Film:
    """One episode, kept frame by frame: observations and rewards from frame 0 on."""

    def __init__(self, goal: int = 0, speckle: np.ndarray = CLEAR, **parameters) -> None:
        self.env = TMaze(**parameters)
        observation, self.info = self.env.reset(options={"level": level(goal, speckle)})
        self.frames, self.rewards, self.over = [observation], [0.0], False

    def play(self, *actions: int) -> "Film":
        for action in actions:
            assert not self.over
            observation, reward, self.over, truncated, self.info = self.env.step(action)
            assert not truncated
            self.frames.append(observation)
            self.rewards.append(reward)
        return self

    def wait(self, until: int) -> "Film":
        """Stay until the given frame has been seen."""
        return self.play(*[STAY] * (until - len(self.frames) + 1))

    @property
    def place(self) -> tuple[int, int]:
        """Where the player stands in the environment."""
        state = self.env.batch.state
        return int(state.row[0]), int(state.col[0])

    def text(self, frame: int = -1) -> list[str]:
        """An observation as lines of characters."""
        return ["".join(" #PQ~"[code] for code in row) for row in self.frames[frame].argmax(-1)]


def route(difficulty: int, side: int, half_width: int | None = None) -> list[int]:
    """The shortest way from the entry of the maze to a pad."""
    middle = 94 if difficulty < 4 else 95
    reach = (10, 15, 22, 35, 56, 92)[difficulty] if half_width is None else half_width
    return (
        [LEFT] * (94 - (middle - reach + 3)) + [DOWN] * 5 if side == 0 else [RIGHT] * (middle + reach - 97) + [DOWN] * 5
    )


def full_episode(goal: int, side: int, **parameters) -> Film:
    """Waits on the teleporter's place, and then goes to the pad of `side` as fast as possible."""
    difficulty, half_width = parameters.get("difficulty", 4), parameters.get("half_width")
    delay, limbo = parameters.get("teleport_delay", 50), parameters.get("limbo_time", 280)
    film = Film(goal, **parameters).play(UP, UP)
    taken = max(2, delay - 1)
    film.wait(until=taken + max(1, limbo) + 1)
    film.play(*route(difficulty, side, half_width))
    while not film.over:
        film.play(STAY)
    return film


# -- the best player, and others -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "score", "steps"), [(0, 0.613, 389), (1, 0.611, 391)])
def test_the_expert(side, score, steps):
    for goal in (0, 1):
        film = full_episode(goal, side)
        assert len(film.rewards) - 1 == steps
        assert abs(sum(film.rewards) - (score if goal == side else score - 2)) < 1e-4
        assert film.info == {"solved": goal == side, "finished": True}


def test_random_play_and_waiting_run_into_the_time_out():
    env = TMazeBatch(20)
    env.reset(seed=0)
    random, score = np.random.default_rng(0), np.zeros(20)
    for frame in range(1, 1001):
        _, reward, terminated, truncated, info = env.step(random.integers(5, size=20))
        score += reward
        assert not truncated.any()
        assert terminated.any() == (frame == 1000)
    np.testing.assert_allclose(score, -0.998, atol=1e-4)
    assert not info["solved"].any()
    assert not info["finished"].any()


@pytest.mark.parametrize("difficulty", range(6))
@pytest.mark.parametrize("half_width", [None, 4, 5, 9])
def test_the_fewest_moves_to_the_pads(difficulty, half_width):
    reach = (10, 15, 22, 35, 56, 92)[difficulty] if half_width is None else half_width
    for side in (0, 1):
        more = 0 if difficulty < 4 else (-1, 1)[side]
        moves = route(difficulty, side, half_width)
        assert len(moves) == reach + 2 + more
        film = full_episode(side, side, difficulty=difficulty, half_width=half_width, limbo_time=2, teleport_delay=1)
        # teleporter in frame 2, first effective move in frame 6, the last one in frame 5 + moves
        assert len(film.rewards) - 1 == 5 + len(moves) + 2
        assert film.info["solved"]


# -- the timeline ----------------------------------------------------------------------------------------------------


def test_the_teleporter_appears_at_frame_49():
    film = Film().wait(until=49)
    for frame in (0, 48):
        assert film.text(frame)[1] == "   #   #   "
    assert film.text(49) == [
        "   #####   ",
        "   #~~~#   ",
        "   #   #   ",
        "   # P #   ",
        "QQ #####   ",
        "QQ         ",
        "QQ         ",
    ]
    assert (np.array(film.frames).sum(-1) == 1).all()


@pytest.mark.parametrize("delay", [0, 1])
def test_the_teleporter_can_be_there_from_the_start(delay):
    film = Film(goal=1, teleport_delay=delay)
    assert film.text()[1] == "   #~~~#   "
    assert film.text()[4] == "   ##### QQ"
    film.play(UP, UP, STAY)
    assert film.place == (4, 140)


@pytest.mark.parametrize(("early", "taken"), [(True, 49), (False, 60)])
def test_from_the_room_through_limbo_to_the_maze(early, taken):
    """Taken in frame f: limbo is seen from f + 1 to f + 279, the maze from f + 280; the next move counts at f + 282."""
    film = Film(goal=1)
    film.play(UP, UP).wait(until=taken) if early else film.wait(until=taken - 2).play(UP, UP)
    assert film.place == (4, 94)
    assert film.frames[-1][..., CUE].sum() == 6
    film.play(*[LEFT, UP, DOWN, RIGHT] * 70)
    limbo = film.text(taken + 1)
    assert limbo == [
        "##   #   ##",
        "  ## # ##  ",
        "    ###    ",
        "#####P#####",
        "    ###    ",
        "  ## # ##  ",
        "##   #   ##",
    ]
    assert all(film.text(frame) == limbo for frame in range(taken + 1, taken + 280))
    assert film.place == (57, 94)
    assert film.text() == [
        "           ",
        "           ",
        "###########",
        "     P     ",
        "           ",
        "###########",
        "           ",
    ]
    assert film.play(LEFT).place == (57, 94)
    assert film.play(LEFT).place == (57, 93)


@pytest.mark.parametrize("limbo_time", [0, 2, 3, 10])
@pytest.mark.parametrize("col", [93, 94, 95])
def test_limbo_of_any_length(limbo_time, col):
    film = Film(limbo_time=limbo_time, teleport_delay=1, difficulty=0)
    film.play(UP, {93: LEFT, 94: STAY, 95: RIGHT}[col], UP)
    assert film.place == (4, col)
    for frame in range(4, 3 + limbo_time):
        assert film.play(UP).place == (4, 140), frame
    arrival = (13, 94 if limbo_time else col)
    assert film.play(DOWN).place == arrival
    assert film.play(DOWN).place == arrival
    assert film.play(DOWN).place == (14, arrival[1])


@pytest.mark.parametrize("goal", [0, 1])
@pytest.mark.parametrize("after", [False, True])
def test_the_cue(goal, after):
    film = Film(goal, limbo_time=5, teleport_delay=4, cue_after_teleport=after).play(UP, UP).wait(until=20)
    expected = np.zeros((7, 11), np.bool_)
    expected[4:7, 0:2] = goal == 0
    expected[4:7, 9:11] = goal == 1
    for frame, planes in enumerate(film.frames):
        shown = after or frame <= 3
        np.testing.assert_array_equal(planes[..., CUE], expected if shown else False)


def test_frames_0_and_1_and_the_last_one_cost_nothing():
    film = Film(timeout_frames=30).wait(until=30)
    assert film.over
    assert film.rewards[:2] == [0.0, 0.0]
    np.testing.assert_allclose(film.rewards[2:30], -0.001, atol=1e-9)
    assert film.rewards[30] == 0.0


QUICK = {"difficulty": 0, "half_width": 4, "limbo_time": 0, "teleport_delay": 0}
ON_PAD = 10
"""Frame in which `QUICK` episodes step on a pad: two moves in the room, two ignored actions, six moves in the maze."""


@pytest.mark.parametrize("timeout", [ON_PAD, ON_PAD + 1, ON_PAD + 2, ON_PAD + 3])
@pytest.mark.parametrize("side", [0, 1])
def test_a_pad_pays_one_frame_later_if_there_is_time(timeout, side):
    """Stepping on it in frame F pays in F + 1 < timeout_frames, together with the cost of the frame, and F + 2 ends."""
    film = Film(goal=0, timeout_frames=timeout, **QUICK).play(UP, UP, STAY, STAY, *route(0, side, 4))
    assert film.place[0] == 18
    while not film.over:
        film.play(STAY)
    paid = ON_PAD + 1 < timeout
    assert len(film.rewards) - 1 == (ON_PAD + 2 if paid else timeout)
    assert film.info == {"solved": paid and side == 0, "finished": paid}
    if paid:
        np.testing.assert_allclose(film.rewards[ON_PAD + 1], (1.0, -1.0)[side] - 0.001, atol=1e-6)
    assert film.rewards[-1] == 0.0


def test_walking_on_after_a_pad():
    """The wall below a pad blocks, and a second pad pays nothing."""
    film = Film(**QUICK).play(UP, UP, STAY, STAY, *route(0, 0, 4), DOWN, LEFT)
    assert film.place == (18, 92)
    assert film.over
    assert abs(sum(film.rewards) - (1 - 0.001 * ON_PAD)) < 1e-6


def test_no_time_out():
    env = TMazeBatch(1, **NEVER)
    env.reset(seed=0)
    assert not any(env.step(np.array([STAY]))[2][0] for _ in range(3000))


# -- the map ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difficulty", "left", "right"),
    [(0, 84, 104), (1, 79, 109), (2, 72, 116), (3, 59, 129), (4, 39, 151), (5, 3, 187)],
)
def test_the_mazes(difficulty, left, right):
    """Reachable cells: the corridor two rows high and two arms of three columns; the pads at their ends."""
    film = Film(difficulty=difficulty, limbo_time=0, teleport_delay=0, **NEVER).play(UP, UP, STAY)
    env, top = film.env.batch, 12 + 11 * difficulty
    assert film.place == (top + 1, 94)
    corridor = {(r, c) for r in (top + 1, top + 2) for c in range(left + 1, right)}
    arms = {(r, c) for r in range(top + 3, top + 7) for a in (left + 1, right - 3) for c in range(a, a + 3)}
    reached, edge = {film.place}, [film.place]
    while edge:
        for action in range(4):
            env.state.row[0], env.state.col[0] = edge[-1]
            env.state.left[0] = edge[-1][1] - 5
            env.state.deadline[0], env.state.over[0] = 2**62, False
            env.step(np.array([action]))
            there = int(env.state.row[0]), int(env.state.col[0])
            if there not in reached:
                reached.add(there)
                edge.insert(0, there)
        edge.pop()
    assert reached == corridor | arms
    assert (env.maze.left + 1, env.maze.right - 3, env.params.rules.pad_row) == (left + 1, right - 3, top + 6)


def test_the_end_of_an_arm_in_the_narrowest_maze():
    film = full_episode(0, 0, difficulty=1, half_width=4, limbo_time=2, teleport_delay=0)
    assert film.text(-2) == [
        "  #   #   #",
        "  #   #   #",
        "  #   #   #",
        "  #~~P#~~~#",
        "  #########",
        "           ",
        "           ",
    ]


def test_speckle_covers_all_but_room_limbo_and_maze_and_blocks_nobody():
    full = np.ones((77, 191), np.bool_)
    film = Film(speckle=full, difficulty=2, half_width=15, limbo_time=2, teleport_delay=0)
    assert film.text()[:4] == ["   #####   ", "   #~~~#   ", "   #   #   ", "   # P #   "]
    film.play(UP, UP, STAY, STAY)
    assert film.text() == ["#" * 11] * 3 + ["     P     ", " " * 11] + ["#" * 11] * 2
    film.play(STAY, *route(2, 0, 15))
    assert film.text() == ["###   #####"] * 3 + ["###~~P#####"] + ["#" * 11] * 3
    expected = full.copy()
    expected[:10] = False
    expected[34:42, 79:110] = False
    expected[38:42, 84:105] = True
    np.testing.assert_array_equal(film.env.level["speckle"], expected)


def test_speckle_is_drawn_with_probability_0_6():
    env = TMazeBatch(40, difficulty=0)
    env.reset(seed=5)
    drawn = np.array([env.level(i)["speckle"] for i in range(40)])
    part = drawn[:, 30:]
    assert abs(part.mean() - 0.6) < 4.5 * np.sqrt(0.24 / part.size)
    cells = part.mean(0)
    assert np.abs(cells - 0.6).max() < 5.5 * np.sqrt(0.24 / 40)
    # neighbors and games are independent
    assert abs(np.corrcoef(part[:, :, 1:].ravel(), part[:, :, :-1].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(part[1:].ravel(), part[:-1].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("speckled", [0.0, 0.6])
def test_the_view_shows_the_environment_around_the_player(speckled):
    """On the way to the left pad of difficulty 3, across the borders of the words that hold a row's bits."""
    speckle = np.random.default_rng(0).random((77, 191)) < speckled
    film = Film(speckle=speckle, difficulty=3, limbo_time=2, teleport_delay=0).play(UP, UP, STAY, STAY, STAY)
    walls, region = draw_map(maze_at(3, None))
    environment = walls | (speckle & region)
    for action in [DOWN, *route(3, 0)]:
        film.play(action)
        row, col = film.place
        np.testing.assert_array_equal(film.frames[-1][..., WALL], environment[row - 3 : row + 4, col - 5 : col + 6])
        assert film.frames[-1][3, 5, PLAYER] == 1
    assert film.place == (51, 62)


@pytest.mark.parametrize(("col", "first"), [(93, 1), (94, 0), (95, -1)])
def test_the_widest_maze_reaches_the_edge_of_the_map(col, first):
    """The window stays within columns first .. first + 190; beyond the map it shows the opposite end."""
    speckle = np.random.default_rng(7).random((77, 191)) < 0.6
    film = Film(speckle=speckle, difficulty=5, limbo_time=2, teleport_delay=0, **NEVER)
    film.play(UP, {93: LEFT, 94: STAY, 95: RIGHT}[col], UP).wait(until=6)
    film.play(*[LEFT] * 100)
    assert film.place == (68, 4)
    assert film.frames[-1][3, 4 - first, PLAYER] == 1
    rows = np.arange(65, 72)
    beyond = film.frames[-1][:, 0, WALL]
    np.testing.assert_array_equal(beyond, speckle[rows, first % 191])
    film.play(*[RIGHT] * 100)
    assert film.frames[-1][3, 4 - first, PLAYER] == 1
    film.play(*[RIGHT] * 100)
    assert film.place == (68, 186)
    assert film.frames[-1][3, 6 - first, PLAYER] == 1
    np.testing.assert_array_equal(film.frames[-1][:, -1, WALL], speckle[rows, (first + 190) % 191])


# -- levels, parameters, pictures ------------------------------------------------------------------------------------


def test_a_drawn_board_is_that_of_its_level():
    """To the last bit: beyond each end of the map lies the opposite end."""
    env = TMazeBatch(4, difficulty=5)
    env.reset(seed=8)
    drawn = env.state.board.copy()
    for index in range(4):
        env.set_level(index, env.level(index))
    np.testing.assert_array_equal(env.state.board, drawn)


def test_goals_are_drawn_evenly():
    env = TMazeBatch(1000)
    env.reset(seed=6)
    assert abs(env.state.goal.mean() - 0.5) < 4.5 * np.sqrt(0.25 / 1000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": 2}, r"level\['goal'\].*integers in 0\.\.1"),
        ({"speckle": CLEAR[:-1]}, r"level\['speckle'\] is an array of bool \(76, 191\); expected bool \(77, 191\)"),
        ({"speckle": CLEAR.astype(int)}, "expected bool"),
    ],
)
def test_levels_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        TMaze().reset(options={"level": level(0) | change})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"difficulty": 6}, r"difficulty is 6; allowed: 0\.\.5"),
        ({"limbo_time": 1}, r"limbo_time is 1; allowed: 0 \(no limbo\), or at least 2"),
        ({"limbo_time": -1}, "limbo_time is -1"),
        ({"teleport_delay": -1}, "teleport_delay is -1"),
        ({"timeout_frames": 0}, r"timeout_frames is 0; allowed: -1 \(no timeout\), or at least 1"),
        ({"timeout_frames": -2}, "timeout_frames is -2"),
        ({"half_width": 3}, r"half_width is 3; allowed: 4\.\.92"),
        ({"half_width": 93}, "half_width is 93"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        TMazeBatch(2, **parameters)


@pytest.mark.parametrize("difficulty", [0, 5])
def test_pictures_show_the_view(difficulty):
    env = TMazeBatch(1, difficulty=difficulty, teleport_delay=0, limbo_time=2)
    env.reset(seed=2)
    room = env.draw(0)
    assert room.shape == (7 * 40, 11 * 40, 3)
    for action in (UP, UP, STAY, STAY, STAY):
        env.step(np.array([action]))
    assert (env.draw(0) != room).any()


def test_a_level_without_speckle_has_it_drawn():
    env = TMaze()
    env.reset(seed=3, options={"level": {"goal": 1}})
    drawn = env.unwrapped.level
    assert drawn["goal"] == 1
    assert 0.5 < drawn["speckle"][25:].mean() < 0.65
