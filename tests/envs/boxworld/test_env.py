"""BoxWorld against a slow game written from its rules, its levels against a solver, and its limits."""

from collections import deque

import numpy as np
import pytest
from gymnasium import error

from engram.envs.boxworld import BoxWorld, BoxWorldBatch
from engram.envs.boxworld.rules import PALETTE

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
FLOOR, GEM, PLAYER, BLACK = (204, 204, 204), (255, 255, 255), (128, 128, 128), (0, 0, 0)


def hue(letter: str) -> tuple[int, ...]:
    return tuple(int(v) for v in PALETTE[4 + ord(letter.lower()) - ord("a")])


class SlowBoxWorld:
    """The game played on the strings of a level, one character at a time."""

    def __init__(self, level: dict):
        self.cells = {(r, c): ch for r, line in enumerate(level["board"]) for c, ch in enumerate(line)}
        self.player = next(at for at, ch in self.cells.items() if ch == ".")
        self.cells[self.player] = " "
        self.held = self.cells[0, 0] if self.cells[0, 0] != "#" else ""
        self.cells[0, 0] = "#"
        self.good = {tuple(lock) for lock in level["solution_locks"]}

    def step(self, action: int) -> tuple[float, bool]:
        target = (self.player[0] + MOVES[action][0], self.player[1] + MOVES[action][1])
        found, right = self.cells[target], self.cells.get((target[0], target[1] + 1), "#")
        locked = right.isupper()
        if found == "#" or (found.isupper() and found.lower() != self.held):
            return 0.0, False
        if (found.islower() or found == "*") and locked:
            return 0.0, False
        self.player, self.cells[target] = target, " "
        if found.isupper():
            self.held = ""
            return (1.0, False) if target in self.good else (-1.0, True)
        if found.islower():
            self.held = found
        return (10.0, True) if found == "*" else (0.0, False)

    def color(self, at: tuple[int, int]) -> tuple[int, ...]:
        found = self.cells.get(at, "#")
        if at == self.player:
            return PLAYER
        return {"#": BLACK, " ": FLOOR, "*": GEM}.get(found) or hue(found)

    def window(self) -> np.ndarray:
        hand = hue(self.held) if self.held else BLACK
        r0, c0 = self.player
        return np.array(
            [[(*self.color((r, c)), *hand) for c in range(c0 - 2, c0 + 3)] for r in range(r0 - 2, r0 + 3)], np.uint8
        )

    def board(self) -> np.ndarray:
        side = max(r for r, _ in self.cells) + 1
        picture = np.array([[self.color((r, c)) for c in range(side)] for r in range(side)], np.uint8)
        picture[0, 0] = hue(self.held) if self.held else BLACK
        return picture


def levels_of(**parameters: object) -> list[dict]:
    env = BoxWorldBatch(2000, **parameters)  # pyright: ignore[reportArgumentType]
    env.reset(seed=11)
    return [env.level(i) for i in range(env.num_envs)]


@pytest.fixture(scope="module")
def levels() -> list[dict]:
    return levels_of()


def route(game: SlowBoxWorld, goal: tuple[int, int]) -> list[int] | None:
    """Actions of a shortest walk over floor whose last step enters `goal` (breadth first)."""
    queue, seen = deque([(game.player, [])]), {game.player}
    while queue:
        at, actions = queue.popleft()
        for action, (down, right) in enumerate(MOVES):
            new = (at[0] + down, at[1] + right)
            if new == goal:
                return [*actions, action]
            if game.cells[new] == " " and new not in seen:
                seen.add(new)
                queue.append((new, [*actions, action]))
    return None


def solve(level: dict) -> tuple[list[int], int]:
    """Actions that collect the gem, and the locks they open, found by trying everything that does not end the game."""
    queue = deque([(SlowBoxWorld(level), [], 0)])
    while queue:
        game, actions, opened = queue.popleft()
        for at, found in list(game.cells.items()):
            if found in " #" or (found.isupper() and at not in game.good):
                continue
            walk = route(game, at)
            if walk is None:
                continue
            after = SlowBoxWorld.__new__(SlowBoxWorld)
            after.__dict__ = game.__dict__ | {"cells": dict(game.cells)}
            for action in walk:
                reward, ended = after.step(action)
            if ended:
                return actions + walk, opened
            if after.player == at:
                queue.append((after, actions + walk, opened + (reward == 1.0)))
    raise AssertionError(f"no solution: {level}")


def things(level: dict) -> list[tuple[int, int, str, str]]:
    """Every content of a level: row, column, its character and its lock ('' for the loose key)."""
    board = level["board"]
    return [
        (r, c, ch, board[r][c + 1] if board[r][c + 1].isupper() else "")
        for r, line in enumerate(board)
        for c, ch in enumerate(line)
        if ch.islower() or ch == "*"
    ]


@pytest.mark.integration
def test_every_level_is_solved_with_exactly_its_path(levels):
    env = BoxWorld(max_steps=10_000)
    for level in levels[:150] + levels_of(branch_length=2, num_distractors=(0, 2))[:50]:
        actions, opened = solve(level)
        _, info = env.reset(options={"level": level})
        assert opened == len(level["solution_locks"]) == info["path_length"]
        score = 0.0
        for action in actions:
            assert not info["solved"]
            _, reward, terminated, truncated, info = env.step(action)
            score += reward
        assert (score, terminated, truncated, info["solved"]) == (opened + 10, True, False, True)


@pytest.mark.integration
@pytest.mark.parametrize(
    "parameters", [{}, {"grid_size": 6, "path_lengths": 1, "num_distractors": 0}, {"grid_size": 8}]
)
@pytest.mark.parametrize("view", ["viewport", "full"])
def test_random_play_equals_the_slow_game(parameters, view):
    small = {"path_lengths": (1, 2), "num_distractors": (0, 2)} if parameters else {}
    env, random = BoxWorld(view=view, **(small | parameters)), np.random.default_rng(5)
    outcomes = set()
    for episode in range(60):
        observation, _ = env.reset(seed=episode)
        slow, steps, ended = SlowBoxWorld(env.level), 0, False
        while not ended:
            np.testing.assert_array_equal(observation, slow.window() if view == "viewport" else slow.board())
            action, steps = int(random.integers(4)), steps + 1
            observation, reward, terminated, truncated, _ = env.step(action)
            assert (reward, terminated) == slow.step(action)
            assert truncated == (steps == 121 and not terminated)
            ended = terminated or truncated
            outcomes.add(reward)
    assert 0.0 in outcomes
    if parameters:
        assert {10.0, 1.0} <= outcomes


def test_boxes_never_touch_and_keep_to_their_cells(levels):
    contents = [thing for level in levels for thing in things(level)]
    rows, cols = np.array([(r, c) for r, c, _, _ in contents]).T
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (2, 11, 2, 9)
    players = np.array([SlowBoxWorld(level).player for level in levels])
    assert players.min(0).tolist() == [2, 1]
    assert players.max(0).tolist() == [11, 11]
    for level in levels:
        taken = [{(r, c)} | ({(r, c + 1)} if lock else set()) for r, c, _, lock in things(level)]
        for k, one in enumerate(taken):
            for other in taken[:k]:
                assert min(max(abs(r - y), abs(c - x)) for r, c in one for y, x in other) > 1


def test_paths_and_distractors(levels):
    for level in levels:
        good, bad = set(level["solution_locks"]), set(level["distractor_locks"])
        path = {lock: content for r, c, content, lock in things(level) if (r, c + 1) in good}
        (loose,) = [content for _, _, content, lock in things(level) if not lock]
        key, order = loose, []
        while key != "*":
            order.append(key)
            key = path[key.upper()]
        assert len(order) == len(good) == len(set(order))
        for r, c, content, lock in things(level):
            if (r, c + 1) in bad:
                assert lock.lower() in order
                assert content not in order


def test_level_sizes_are_uniform(levels):
    lengths = np.array([len(level["solution_locks"]) for level in levels])
    branches = np.array([len(level["distractor_locks"]) for level in levels])
    # 4.5 standard errors, and the slight bias against crowded levels that redrawing brings
    for values, count in ((lengths - 1, 5), (branches, 6)):
        shares = np.bincount(values, minlength=count) / len(values)
        assert len(shares) == count
        assert np.abs(shares - 1 / count).max() < 4.5 * np.sqrt(1 / count / len(values)) + 0.005
    assert abs((lengths + 10).mean() - 13) < 4.5 * np.sqrt(2 / len(lengths))


def test_every_color_is_as_likely_as_any_other(levels):
    loose = [content for level in levels for _, _, content, lock in things(level) if not lock]
    counts = np.bincount([ord(letter) - ord("a") for letter in loose], minlength=20)
    assert len(counts) == 20
    assert np.abs(counts - len(levels) / 20).max() < 4.5 * np.sqrt(len(levels) / 20)


def test_colors_are_the_twenty_hues_of_the_paper():
    keys = PALETTE[4:24].astype(float) * 999 / 255
    for index, color in {0: (700, 350, 350), 1: (700, 454, 350), 5: (524, 700, 350), 19: (700, 350, 455)}.items():
        np.testing.assert_allclose(keys[index], color, atol=3)
    assert len(np.unique(keys, axis=0)) == 20
    np.testing.assert_array_equal(PALETTE[4:24], PALETTE[24:44])
    np.testing.assert_array_equal(PALETTE[4:24], PALETTE[44:64])


def corridor(row: str) -> dict:
    """A level whose row 5 is given and whose other cells are floor."""
    lines = ["#" * 14, *["#" + " " * 12 + "#"] * 12, "#" * 14]
    lines[5] = f"#{row:12}#"
    locks = [(5, c) for c, ch in enumerate(lines[5]) if ch.isupper()]
    return {"board": lines, "solution_locks": locks, "distractor_locks": []}


@pytest.mark.parametrize("last", [2, 3])
def test_the_game_ends_at_action_121(last):
    env = BoxWorld()
    env.reset(options={"level": corridor(".*")})
    for _ in range(120):
        _, reward, terminated, truncated, _ = env.step(2)
        assert (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(last)
    gem = last == 3
    assert (reward, terminated, truncated, info["solved"]) == (10.0 * gem, gem, not gem, gem)


def test_keys_locks_and_rewards_one_by_one():
    env = BoxWorld()
    level = corridor(" a.  *A     ")
    env.reset(options={"level": level})
    for action, player, held in [(3, 4, ""), (3, 5, ""), (3, 5, ""), (2, 4, ""), (2, 3, ""), (2, 2, "a")]:
        env.step(action)
        now = env.level
        assert (now["board"][5].index("."), now["board"][0][0].replace("#", "")) == (player, held)
    for action in (0, 3, 3, 3, 3, 3, 1):
        _, reward, *_ = env.step(action)
    assert reward == 1.0
    assert env.level["board"][0][0] == "#"
    _, reward, terminated, _, info = env.step(2)
    assert (reward, terminated, info["solved"]) == (10.0, True, True)


def test_a_second_key_replaces_the_first_and_a_distractor_ends_the_game():
    env = BoxWorld()
    level = corridor(".ab    *B aA")
    level |= {"solution_locks": [(5, 9)], "distractor_locks": [(5, 12)]}
    env.reset(options={"level": level})
    env.step(3)
    assert env.level["board"][0][0] == "a"
    env.step(3)
    assert env.level["board"][0][0] == "b"
    level["board"][0] = "a" + "#" * 13
    level["board"][4] = "#" + " " * 11 + ".#"
    level["board"][5] = level["board"][5].replace(".", " ")
    env.reset(options={"level": level})
    _, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info["solved"]) == (-1.0, True, False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"board": ["#"]}, "14 strings of 14"),
        ({"board": corridor("..")["board"]}, "expected one player"),
        ({"board": corridor("?.")["board"]}, "14 strings of 14 of"),
        ({"board": [" " * 14, *corridor(".*")["board"][1:]]}, "border"),
        ({"solution_locks": [(1, 1)]}, "locks of the board"),
        (corridor(".* *"), "one gem"),
    ],
)
def test_levels_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        BoxWorld().reset(options={"level": corridor(".*A") | change})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"path_lengths": 0}, r"path_lengths is 0; allowed: 1\.\.20"),
        ({"path_lengths": (3, 2)}, r"path_lengths is \(3, 2\)"),
        ({"path_lengths": (1, 2, 3)}, "path_lengths"),
        ({"path_lengths": "long"}, "path_lengths"),
        ({"path_lengths": 14, "num_distractors": 0}, "15 objects to place; allowed: at most 13 with grid_size 12"),
        ({"path_lengths": 19, "num_distractors": 1, "grid_size": 30}, "path_lengths up to 19 leave no colors"),
        ({"num_distractors": -1}, "num_distractors is -1; allowed: at least 0"),
        ({"branch_length": 0}, "branch_length is 0"),
        ({"branch_length": 2.5}, r"branch_length is 2\.5"),
        ({"grid_size": 4}, r"grid_size is 4; allowed: 5\.\.64"),
        ({"view": "half"}, "view is 'half'; allowed: 'viewport', 'full'"),
        ({"max_steps": 0}, "max_steps is 0; allowed: at least 1"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        BoxWorldBatch(2, **parameters)


@pytest.mark.parametrize("grid_size", [5, 8, 12, 14, 16, 20])
def test_the_most_crowded_levels_allowed_can_be_drawn(grid_size):
    most = next(n for n in range(40, -1, -1) if fits(grid_size, n))
    env = BoxWorldBatch(4, path_lengths=1, num_distractors=most, grid_size=grid_size)
    env.reset(seed=0)
    assert all(len(things(env.level(i))) == most + 2 for i in range(4))


def fits(grid_size: int, num_distractors: int) -> bool:
    try:
        BoxWorldBatch(1, path_lengths=1, num_distractors=num_distractors, grid_size=grid_size)
    except ValueError:
        return False
    return True


def test_pictures_show_board_window_and_hand():
    env = BoxWorldBatch(1)
    env.reset(seed=2)
    whole, window = env.draw(0), env.draw(0, full=False)
    assert whole.shape == (15 * 28, 14 * 28, 3)
    assert window.shape == (6 * 78, 5 * 78, 3)
    env.state.held[0] = 4
    assert (env.draw(0) != whole).any()
    assert (env.draw(0, full=False) != window).any()


def test_pictures_of_the_twins_view_show_the_whole_board():
    env = BoxWorldBatch(1, view="full")
    env.reset(seed=2)
    np.testing.assert_array_equal(env.draw(0, full=False), env.draw(0))


def test_stepping_after_the_end_needs_a_reset():
    env = BoxWorld()
    with pytest.raises(error.ResetNeeded):
        env.step(0)
    env.reset(options={"level": corridor(".*")})
    env.step(3)
    with pytest.raises(error.ResetNeeded):
        env.step(0)
