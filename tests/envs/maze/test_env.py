"""The maze against a slow game written from its rules, its geometry, and what it is worth to those who know it."""

from collections import deque

import numpy as np
import pytest

from engram.envs.maze import Maze, MazeBatch

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
SIZES = (9, 11, 13)


def is_wall(size: int, row: int, col: int) -> bool:
    """The rule of the maze in words: around, and where both are even, but not in the center."""
    inside = 0 < row < size - 1 and 0 < col < size - 1
    return not inside or (row % 2 == 0 and col % 2 == 0 and (row, col) != (size // 2, size // 2))


class SlowMaze:
    """One agent on a level."""

    def __init__(self, level: dict, size: int, num_steps: int, penalty: float):
        self.size, self.num_steps, self.penalty = size, num_steps, penalty
        self.at, self.goal = (size // 2, size // 2), level["goal"]
        self.teleports = list(level["teleports"])
        self.time, self.last_action, self.last_reward = 0, None, 0.0

    def step(self, action: int) -> tuple[float, bool]:
        self.time, self.last_action, self.last_reward = self.time + 1, action, 0.0
        row, col = self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1]
        if is_wall(self.size, row, col):
            self.last_reward -= self.penalty
        else:
            self.at = (row, col)
        if self.at == self.goal:
            self.last_reward += 10.0
            self.at = self.teleports.pop(0)
        return self.last_reward, self.time == self.num_steps

    def observation(self) -> list[float]:
        row, col = self.at
        around = [is_wall(self.size, row + r, col + c) for r in (-1, 0, 1) for c in (-1, 0, 1)]
        last = [self.last_action == action for action in range(4)]
        way = [(self.goal[0] - row) / (self.size - 3), (self.goal[1] - col) / (self.size - 3)]
        return [*around, self.time / self.num_steps, self.last_reward, *last, *way]


def ways(size: int, goal: tuple[int, int]) -> np.ndarray:
    """The action that begins a shortest way to `goal` from each cell, [size, size]; on the goal, any step off it."""
    best = np.full((size, size), -1)
    queue = deque([goal])
    while queue:
        row, col = queue.popleft()
        for action, (down, right) in enumerate(MOVES):
            cell = (row - down, col - right)
            if not is_wall(size, *cell) and best[cell] < 0:
                best[cell] = action
                if cell != goal:
                    queue.append(cell)
    # whoever stands on the goal steps off towards a free neighbor
    best[goal] = next(k for k, (r, c) in enumerate(MOVES) if not is_wall(size, goal[0] + r, goal[1] + c))
    return best


def expert_return(size: int, num_steps: int, repeats: int) -> float:
    """Mean return of an agent that knows the goal, over all goals, `repeats` episodes each."""
    cells = [(r, c) for r in range(size) for c in range(size) if not is_wall(size, r, c)] * repeats
    env = MazeBatch(len(cells), size=size, num_steps=num_steps)
    env.reset(seed=3)
    for index, goal in enumerate(cells):
        env.set_level(index, {"goal": goal})
    best, copies, total = np.array([ways(size, goal) for goal in cells]), np.arange(len(cells)), 0.0
    for _ in range(num_steps):
        _, reward, terminated, *_ = env.step(best[copies, env.state.row, env.state.col])
        total += reward.sum()
    assert terminated.all()
    return total / len(cells)


@pytest.mark.parametrize(("size", "free", "pillars"), [(9, 41, 8), (11, 65, 16), (13, 97, 24)])
def test_geometry(size, free, pillars):
    walls = MazeBatch(1, size=size).params.walls
    expected = [[is_wall(size, r, c) for c in range(size)] for r in range(size)]
    np.testing.assert_array_equal(walls, expected)
    assert (walls == 0).sum() == free
    assert walls[1:-1, 1:-1].sum() == pillars


@pytest.mark.integration
@pytest.mark.parametrize(("size", "num_steps", "penalty"), [(9, 40, 0.1), (11, 250, 0.1), (13, 30, 0.05)])
def test_it_plays_like_the_slow_game(size, num_steps, penalty):
    env = MazeBatch(30, size=size, num_steps=num_steps, wall_penalty=penalty, previous_action=True, show_goal=True)
    observation, _ = env.reset(seed=5)
    random = np.random.default_rng(6)
    for _ in range(2):
        games = [SlowMaze(env.level(i), size, num_steps, penalty) for i in range(30)]
        best = np.array([ways(size, game.goal) for game in games])
        over = False
        while not over:
            for seen, game in zip(observation, games, strict=True):
                np.testing.assert_allclose(seen, game.observation(), rtol=1e-6)
            # half of the steps lead to the goal
            known = best[np.arange(30), env.state.row, env.state.col]
            actions = np.where(random.random(30) < 0.5, known, random.integers(4, size=30))
            observation, reward, terminated, truncated, _ = env.step(actions)
            expected = [game.step(int(action)) for game, action in zip(games, actions, strict=True)]
            np.testing.assert_allclose(reward, [earned for earned, _ in expected], rtol=1e-6)
            assert terminated.tolist() == [ended for _, ended in expected]
            assert not truncated.any()
            over = terminated.all()
        observation, reward, *_ = env.step(actions)
        assert not reward.any()


@pytest.mark.parametrize(("size", "num_steps", "known"), [(11, 250, 411.7), (9, 250, 531.1), (13, 200, 272.0)])
def test_returns_of_those_who_know_the_goal(size, num_steps, known):
    assert expert_return(size, num_steps, repeats=8) == pytest.approx(known, abs=2.0)


@pytest.mark.parametrize(("size", "known"), [(11, 0.0), (9, 10.0)])
def test_returns_of_chance(size, known):
    env = MazeBatch(4000, size=size)
    env.reset(seed=8)
    random, total = np.random.default_rng(9), 0.0
    for _ in range(250):
        total += env.step(random.integers(4, size=4000))[1].mean()
    assert total == pytest.approx(known, abs=1.5)


def test_goals_and_teleports_are_uniform_over_the_free_cells():
    env = MazeBatch(6500, num_steps=5)
    env.reset(seed=10)
    cells = np.concatenate([env.state.goal[:, None], env.state.teleports], axis=1).astype(int)
    for k in range(6):
        counts = np.bincount(cells[:, k, 0] * 11 + cells[:, k, 1], minlength=121).reshape(11, 11)
        assert not counts[env.params.walls == 1].any()
        free = counts[env.params.walls == 0]
        # chi-squared with 64 degrees of freedom: mean 64, standard deviation 11.3
        assert ((free - 100) ** 2 / 100).sum() < 64 + 5 * 11.3
    assert len(np.unique(cells[:, 0] * 11 + cells[:, 1], axis=0)) > 2000


def test_the_agent_can_land_on_the_goal_and_bump_there():
    env = Maze(size=9)
    level = {"goal": (3, 4), "teleports": [(3, 4), (1, 1), (3, 4)]}
    env.reset(options={"level": level})
    rewards = [env.step(action)[1] for action in (0, 0, 0, 2, 3)]
    # up to the goal and back onto it; up into the pillar at (2, 4), still on the goal; then walls at (0, 1) and (1, 0)
    assert rewards == pytest.approx([10.0, 9.9, -0.1, -0.1, 0.0])
    assert env.level["goal"] == (3, 4)
    assert env.level["teleports"][:3] == [(3, 4), (1, 1), (3, 4)]
    assert len(env.level["teleports"]) == 250


def test_what_is_reported():
    env = Maze(size=9, num_steps=4)
    env.reset(options={"level": {"goal": (3, 4), "teleports": [(1, 1)] * 4}})
    infos = [env.step(action)[-1] for action in (1, 0, 0, 0)]
    assert infos[1] == {"successes": 0, "first_success": 4, "bumps": 0}
    assert infos[3] == {"successes": 1, "first_success": 3, "bumps": 1}
    env.reset(options={"level": {"goal": (3, 4), "teleports": [(4, 4)] * 4}})
    assert [env.step(0)[-1]["first_success"] for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ({"goal": (2, 2)}, r"level goal is \(2, 2\); allowed: a free cell \(row, col\) of \(11, 11\)"),
        ({"goal": (0, 5)}, "level goal"),
        ({"goal": (1.9, 3.9)}, r"level goal is \(1\.9, 3\.9\); expected two integers"),
        ({"goal": 3}, "level goal is 3; expected two integers"),
        ({"goal": (-2, 1)}, "level goal"),
        ({"goal": (1, 1), "teleports": [(1, 2), (11, 1)]}, r"level teleport is \(11, 1\)"),
    ],
)
def test_levels_that_make_no_sense(level, message):
    with pytest.raises(ValueError, match=message):
        Maze().reset(options={"level": level})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"size": 10}, "size is 10; allowed: odd numbers"),
        ({"size": 3}, r"size is 3; allowed: 5\.\.99"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"wall_penalty": -1}, "wall_penalty is -1"),
        ({"wall_penalty": "much"}, "wall_penalty is 'much'"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        MazeBatch(2, **parameters)


def test_pictures_hide_the_goal_from_the_agent():
    level = {"goal": (4, 5)}
    for show_goal in (False, True):
        env = Maze(show_goal=show_goal, render_mode="rgb_array")
        env.reset(options={"level": level})
        gold = [(env.batch.draw(0, full=full) == (250, 205, 70)).all(-1).any() for full in (True, False)]
        assert gold == [True, show_goal]
