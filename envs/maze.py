"""Maze exploration: find an invisible goal, then return to it repeatedly."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ..base.compiled import kernel
from ..base.errors import check_flag, check_integer, check_range
from .arrays import Array, check_cell, zeroed
from .drawing import Canvas, mosaic
from .engine import BatchedEnv, batch_loops
from .randomness import integer
from .single import single

WALL, FLOOR, AGENT, GOAL = (62, 68, 80), (236, 238, 240), (88, 190, 110), (250, 205, 70)
GOAL_REWARD = 10.0
ACTION_NONE = -1
VIEW = 3  # Rows and columns of the observed cells, with the agent in the middle
_ROWS, _COLS = np.array([-1, 1, 0, 0]), np.array([0, 0, -1, 1])


class State(NamedTuple):
    """N agents, T steps per episode. Cells are (row, col)."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    row: Array  # int64 [N]: row of the agent
    col: Array  # int64 [N]: column of the agent
    goal: Array  # uint8 [N, 2]: cell of the goal
    teleports: Array  # uint8 [N, T, 2]: destinations of successive teleports
    last_action: Array  # int64 [N]: the previous action, or ACTION_NONE
    last_reward: Array  # float64 [N]: the previous reward
    steps: Array  # int64 [N]: steps taken in this episode
    successes: Array  # int64 [N]: times that the goal was reached
    first_success: Array  # int64 [N]: the step that reached the goal for the first time, T if none did
    bumps: Array  # int64 [N]: steps into a wall


class Params(NamedTuple):
    walls: Array  # uint8 [size, size]: 1 for a wall
    free: Array  # uint8 [F, 2]: the cells without a wall
    num_steps: int
    wall_penalty: float
    previous_action: bool
    show_goal: bool


def make_walls(size: int) -> Array:
    """uint8 [size, size]: an outer wall, and a pillar wherever row and column are even, except in the center."""
    walls = np.ones((size, size), np.uint8)
    walls[1:-1, 1:-1] = 0
    walls[2:-1:2, 2:-1:2] = 1
    walls[size // 2, size // 2] = 0
    return walls


@kernel
def draw_teleports(state: State, params: Params, i: int, first: int) -> None:
    """Sample the destinations of environment i from index `first` on."""
    for k in range(first, state.teleports.shape[1]):
        cell = params.free[integer(state.random, i, len(params.free))]
        state.teleports[i, k, 0], state.teleports[i, k, 1] = cell[0], cell[1]


@kernel
def begin(state: State, params: Params, i: int) -> None:
    state.last_action[i], state.last_reward[i], state.steps[i] = ACTION_NONE, 0.0, 0
    state.successes[i], state.first_success[i], state.bumps[i] = 0, params.num_steps, 0
    state.row[i] = state.col[i] = len(params.walls) // 2


@kernel
def start(state: State, params: Params, i: int) -> None:
    cell = params.free[integer(state.random, i, len(params.free))]
    state.goal[i, 0], state.goal[i, 1] = cell[0], cell[1]
    draw_teleports(state, params, i, 0)
    begin(state, params, i)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    successes, first = state.successes[i], state.first_success[i]
    row, col = state.row[i] + _ROWS[action], state.col[i] + _COLS[action]
    bump = params.walls[row, col] != 0
    row, col = (state.row[i], state.col[i]) if bump else (row, col)
    reached = row == state.goal[i, 0] and col == state.goal[i, 1]
    reward = GOAL_REWARD * reached - params.wall_penalty * bump
    state.row[i] = state.teleports[i, successes, 0] if reached else row
    state.col[i] = state.teleports[i, successes, 1] if reached else col
    state.steps[i] += 1
    state.first_success[i] = state.steps[i] if reached and successes == 0 else first
    state.successes[i] = successes + reached
    state.bumps[i] += bump
    state.last_action[i], state.last_reward[i] = action, reward
    return reward, state.steps[i] >= params.num_steps, False


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    row, col, walls = state.row[i], state.col[i], params.walls
    for r in range(VIEW):
        for c in range(VIEW):
            vector[VIEW * r + c] = walls[row - 1 + r, col - 1 + c]
    vector[9] = state.steps[i] / params.num_steps
    vector[10] = state.last_reward[i]
    end = 11
    if params.previous_action:
        for action in range(4):
            vector[end + action] = state.last_action[i] == action
        end += 4
    if params.show_goal:
        farthest = len(walls) - 3
        vector[end] = (state.goal[i, 0] - row) / farthest
        vector[end + 1] = (state.goal[i, 1] - col) / farthest


class MazeBatch(BatchedEnv):
    """N agents, each in a maze with an invisible goal.

    The maze is a square with a wall around it and a pillar wherever row and column are even, except in the center.
    The agent starts in the center and observes the 3x3 cells around it. The goal is a cell that looks like any
    other, the same for the whole episode: reaching it earns 10 and teleports the agent to a random cell.

    Actions: 0 up, 1 down, 2 left, 3 right; walls block.
    Observations: float32 [11]: the 3x3 cells around the agent, row by row, 1 wall, 0 free; steps taken / num_steps; the
        previous reward. `previous_action=True`: also the previous action, one-hot, zeros at the start.
        `show_goal=True`, the memory-free twin: also rows and columns from agent to goal, in -1..1.
    Start: goal uniform over the free cells, including the center and the cells next to it.
    Rewards: +10 for being on the goal after a step, also where a teleport led; -`wall_penalty` for a step into a wall.
        In 250 steps, an agent that knows the goal earns 411.7 on average at size 11, a random one about 0.
    Episode end: terminated after `num_steps` steps.
    Info: `successes`, `first_success` (the step of the first success, `num_steps` without one), `bumps`.

    Args:
        size: rows and columns including the outer wall, odd, 5..99; size 11 has 9x9 cells inside and 16 pillars.
        num_steps: length of an episode.
        wall_penalty: cost of a step into a wall.
        previous_action: observe the previous action.
        show_goal: observe the offset to the goal.

    Differences from the original: the step count is observed as a fraction; no constant inputs.
    References: Munkhdalai et al. 2019, "Metalearned neural memory", section 4.3; Miconi et al. 2018, "Differentiable
        plasticity" (the task).
    """

    fact_values = dict.fromkeys(("goal_row", "goal_column", "row", "column"), ()) | {"found": ("no", "yes")}
    action_names = ("up", "down", "left", "right")
    symbols = ((AGENT, "you"), (FLOOR, "free cell"), (WALL, "wall or pillar"), (GOAL, "goal (only with v or the twin)"))
    episode_fields = ("successes", "first_success", "bumps")
    level_keys = ("goal", "teleports")
    sampled_keys = ("teleports",)
    loops = batch_loops(start, advance, observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        size: int = 11,
        num_steps: int = 250,
        wall_penalty: float = 0.1,
        previous_action: bool = False,
        show_goal: bool = False,
        **batch: Any,
    ) -> None:
        check_flag("previous_action", previous_action)
        check_flag("show_goal", show_goal)
        check_integer("size", size, 5, 99)
        if size % 2 == 0:
            raise ValueError(f"size is {size}; allowed: odd numbers in 5..99")
        check_integer("num_steps", num_steps, 1, 100_000)
        check_range("wall_penalty", wall_penalty, 0, GOAL_REWARD)
        walls, teleports = make_walls(size), (np.uint8, num_steps, 2)
        free = np.argwhere(walls == 0).astype(np.uint8)
        low = np.zeros(11 + 4 * previous_action + 2 * show_goal, np.float32)
        high = np.ones_like(low)
        low[10], high[10] = -wall_penalty, GOAL_REWARD
        if show_goal:
            low[-2:] = -1.0
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            state=zeroed(State, num_envs, goal=(np.uint8, 2), teleports=teleports, last_reward=np.float64),
            params=Params(walls, free, num_steps, float(wall_penalty), previous_action, show_goal),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index` from its start: the goal, and the destinations of successive teleports."""
        row, col = self.state.goal[index].tolist()
        return {"goal": (row, col), "teleports": [(r, c) for r, c in self.state.teleports[index].tolist()]}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        free = self.params.walls == 0
        cells = [check_cell("level teleport", cell, free) for cell in level.get("teleports", ())]
        teleports = cells[: self.params.num_steps]
        self.state.goal[index] = check_cell("level goal", level["goal"], free)
        self.state.teleports[index, : len(teleports)] = np.array(teleports, np.uint8).reshape(-1, 2)
        draw_teleports(self.state, self.params, index, len(teleports))
        begin(self.state, self.params, index)

    def fact_columns(self) -> list[Array]:
        return [*self.state.goal.T, self.state.row, self.state.col, self.state.successes > 0]

    def paint(self, index: int, full: bool = True) -> Canvas:
        row, col = int(self.state.row[index]), int(self.state.col[index])
        colors = np.array([FLOOR, WALL], np.uint8)[self.params.walls]
        if full or self.params.show_goal:
            colors[tuple(self.state.goal[index])] = GOAL
        top, left = (0, 0) if full else (row - 1, col - 1)
        colors = colors if full else colors[top : top + VIEW, left : left + VIEW]
        canvas = mosaic(colors, 28 if full else 100)
        canvas.disc(row - top, col - left, AGENT, 0.7)
        return canvas


Maze = single(MazeBatch)
