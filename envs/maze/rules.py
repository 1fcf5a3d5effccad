"""The rules of the maze for one environment.

All random values are sampled at the start of an episode: the goal, and the cells to which the agent is teleported, in
order. A level contains all of them, so steps are deterministic.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..randomness import integer

GOAL_REWARD = 10.0
ACTION_NAMES = ("up", "down", "left", "right")
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
    """The constructor's arguments, in the form that compiled functions use."""

    walls: Array  # uint8 [size, size]: 1 for a wall
    free: Array  # uint8 [F, 2]: the cells without a wall
    num_steps: int
    wall_penalty: float
    previous_action: bool
    show_goal: bool


def new_state(num_envs: int, num_steps: int) -> State:
    return zeroed(State, num_envs, goal=(np.uint8, 2), teleports=(np.uint8, num_steps, 2), last_reward=np.float64)


def make_walls(size: int) -> Array:
    """uint8 [size, size]: an outer wall, and a pillar wherever row and column are even, except in the center."""
    walls = np.ones((size, size), np.uint8)
    walls[1:-1, 1:-1] = 0
    walls[2:-1:2, 2:-1:2] = 1
    walls[size // 2, size // 2] = 0
    return walls


def observation_size(previous_action: bool, show_goal: bool) -> int:
    """Width of the observation vector: 11, 4 more with the previous action, 2 more with the goal."""
    return VIEW * VIEW + 2 + 4 * previous_action + 2 * show_goal


@kernel
def draw_teleports(state: State, params: Params, i: int, first: int) -> None:
    """Sample the destinations of environment i from index `first` on."""
    random, teleports, free = state.random, state.teleports, params.free
    for k in range(first, teleports.shape[1]):
        cell = integer(random, i, len(free))
        teleports[i, k, 0], teleports[i, k, 1] = free[cell, 0], free[cell, 1]


@kernel
def begin(state: State, params: Params, i: int) -> None:
    """Clear the counters of environment i and put its agent in the center."""
    state.last_action[i], state.last_reward[i], state.steps[i] = ACTION_NONE, 0.0, 0
    state.successes[i], state.first_success[i], state.bumps[i] = 0, params.num_steps, 0
    state.row[i] = state.col[i] = len(params.walls) // 2


@kernel
def start(state: State, params: Params, i: int) -> None:
    cell = integer(state.random, i, len(params.free))
    state.goal[i, 0], state.goal[i, 1] = params.free[cell, 0], params.free[cell, 1]
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
    """Write the observation of environment i, float32 [D]; the layout is in env.py."""
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
