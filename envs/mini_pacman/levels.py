"""State and parameters of Mini-Pacman, and how its levels start.

A cell is a single index: (r, c) on the 15 x 19 map is (r + 1) * WIDTH + c + 1 on a board with an additional rim of
walls, so that no window of 5 x 5 cells extends beyond it and a move is an addition.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..randomness import integer

MAP = (
    "###################",
    "#   #         #   #",
    "# # # ####### # # #",
    "#                 #",
    "# # # ####### # # #",
    "# #             # #",
    "# #### ##### #### #",
    "#      #####      #",
    "# #### ##### #### #",
    "# #             # #",
    "# # # ####### # # #",
    "#                 #",
    "# # # ####### # # #",
    "#   #         #   #",
    "###################",
)
ROWS, COLS = len(MAP), len(MAP[0])
HEIGHT, WIDTH = ROWS + 2, COLS + 2
EMPTY, FOOD, WALL = 0, 1, 2

SAFE_DISTANCE = 5  # Ghosts start outside the rows r - 5 .. r + 4 and columns c - 5 .. c + 4 around Pacman.
MAX_GHOSTS = 32


def _full_board() -> Array:
    """Board at the start of a level, with food in every corridor: int8 [HEIGHT * WIDTH]."""
    board = np.full((HEIGHT, WIDTH), WALL, np.int8)
    board[1:-1, 1:-1] = [[WALL if ch == "#" else FOOD for ch in line] for line in MAP]
    return board.ravel()


FULL_BOARD = _full_board()
NUM_FOOD = int((FULL_BOARD == FOOD).sum())


class Task(NamedTuple):
    """Rewards, and the conditions that end a level; Params has the same names."""

    step_reward: float
    food_reward: float
    pill_reward: float
    ghost_reward: float
    death_reward: float
    all_food: bool = False
    all_pills: bool = False
    all_ghosts: bool = False
    level_limit: int = -1


TASKS = {
    "regular": Task(0.0, 1.0, 2.0, 5.0, 0.0, all_food=True),
    "avoid": Task(0.1, -0.1, -5.0, -10.0, -20.0, all_food=True, level_limit=128),
    "hunt": Task(0.0, 0.0, 1.0, 10.0, -20.0, all_ghosts=True),
    "ambush": Task(0.0, -0.1, 0.0, 10.0, -20.0, all_ghosts=True),
    "rush": Task(0.0, -0.1, 10.0, 0.0, 0.0, all_pills=True),
}


class State(NamedTuple):
    """N games with at most P power pills."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    board: Array  # int8 [N, HEIGHT * WIDTH]: EMPTY, FOOD or WALL
    food_left: Array  # int64 [N]: food on the board
    pacman: Array  # int64 [N]: Pacman's cell
    ghosts: Array  # int64 [N, MAX_GHOSTS]: cells of the ghosts; the first `num_ghosts` count
    headings: Array  # int64 [N, MAX_GHOSTS]: headings of the ghosts, as codes of rules.STEP
    num_ghosts: Array  # int64 [N]: ghosts alive
    pills: Array  # int64 [N, P]: cells of the power pills; the first `num_pills` count
    num_pills: Array  # int64 [N]: power pills left
    power: Array  # int64 [N]: remaining steps in which ghosts can be eaten
    frame: Array  # int64 [N]: steps of this episode
    level_steps: Array  # int64 [N]: steps of this level
    levels_done: Array  # int64 [N]: levels completed in this episode
    reflection: Array
    """int64 [N]: mirroring of the episode: 0 none, 1 left to right, 2 top to bottom, 3 both."""


class Params(NamedTuple):
    """The constructor's arguments, in the form that compiled functions use."""

    step_reward: float
    food_reward: float
    pill_reward: float
    ghost_reward: float
    death_reward: float
    all_food: bool  # The level is done when all food is eaten; likewise for pills and ghosts.
    all_pills: bool
    all_ghosts: bool
    level_limit: int  # The level is done after this many steps; -1: never.
    num_ghosts: int
    num_pills: int
    power_steps: int
    ghost_speed: float
    ghost_acceleration: float
    ghost_randomness: float
    frame_cap: int
    full_view: bool
    centered: bool = False  # The full view is centered on Pacman
    reflect: bool = False


def new_state(num_envs: int, num_pills: int) -> State:
    return zeroed(
        State,
        num_envs,
        board=(np.int8, HEIGHT * WIDTH),
        ghosts=(np.int64, MAX_GHOSTS),
        headings=(np.int64, MAX_GHOSTS),
        pills=(np.int64, num_pills),
    )


@kernel
def start_level(state: State, params: Params, i: int) -> None:
    """Fill environment i's board, and place Pacman, ghosts and pills at random; `levels_done` determines the
    difficulty."""
    for cell in range(HEIGHT * WIDTH):
        state.board[i, cell] = FULL_BOARD[cell]
    state.food_left[i] = NUM_FOOD
    state.num_pills[i] = params.num_pills
    for p in range(params.num_pills):
        state.pills[i, p] = corridor(state.random, i)
    state.pacman[i] = corridor(state.random, i)
    state.num_ghosts[i] = min(params.num_ghosts + state.levels_done[i] // 2, MAX_GHOSTS)
    for g in range(state.num_ghosts[i]):
        state.ghosts[i, g] = distant_corridor(state.random, i, state.pacman[i])
        state.headings[i, g] = integer(state.random, i, 4)
    state.power[i], state.level_steps[i] = 0, 0


@kernel
def corridor(random: Array, i: int) -> int:
    """Sample a cell that is not a wall."""
    while True:
        cell = (1 + integer(random, i, ROWS)) * WIDTH + 1 + integer(random, i, COLS)
        if FULL_BOARD[cell] != WALL:
            return cell


@kernel
def distant_corridor(random: Array, i: int, pacman: int) -> int:
    """Sample a cell that is neither a wall nor near Pacman."""
    while True:
        cell = corridor(random, i)
        down, right = cell // WIDTH - pacman // WIDTH, cell % WIDTH - pacman % WIDTH
        near = -SAFE_DISTANCE <= down < SAFE_DISTANCE and -SAFE_DISTANCE <= right < SAFE_DISTANCE
        if not near:
            return cell
