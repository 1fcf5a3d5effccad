"""The parts of a game of Mini-Pacman, and how its levels start.

A place is one number: cell (r, c) of the 15 x 19 map is place (r + 1) * WIDTH + c + 1 on a board with one more rim of
walls, so that no window reaches outside it and a move is an addition.
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
    """The board at the start of a level, food in every corridor: int8 [HEIGHT * WIDTH]."""
    board = np.full((HEIGHT, WIDTH), WALL, np.int8)
    board[1:-1, 1:-1] = [[WALL if ch == "#" else FOOD for ch in line] for line in MAP]
    return board.ravel()


FULL_BOARD = _full_board()
NUM_FOOD = int((FULL_BOARD == FOOD).sum())


class Task(NamedTuple):
    """Rewards, and the ends of a level: the names of Params."""

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

    random: Array  # uint64 [N]: streams of randomness
    over: Array  # bool [N]: the episode has ended
    board: Array  # int8 [N, HEIGHT * WIDTH]: EMPTY, FOOD or WALL
    food_left: Array  # int64 [N]: food on the board
    pacman: Array  # int64 [N]: Pacman's place
    ghosts: Array  # int64 [N, MAX_GHOSTS]: places of the ghosts; the first `num_ghosts` count.
    headings: Array  # int64 [N, MAX_GHOSTS]: headings of the ghosts, as codes of rules.STEP
    num_ghosts: Array  # int64 [N]: ghosts alive
    pills: Array  # int64 [N, P]: places of the power pills; the first `num_pills` count.
    num_pills: Array  # int64 [N]: power pills left
    power: Array  # int64 [N]: steps for which ghosts can be eaten
    frame: Array  # int64 [N]: steps of this episode
    level_steps: Array  # int64 [N]: steps of this level
    levels_done: Array  # int64 [N]: levels completed in this episode
    reflection: Array
    """int64 [N]: mirroring of the episode: 0 none, 1 left to right, 2 top to bottom, 3 both."""


class Params(NamedTuple):
    """The constructor's arguments, in the form of compiled functions."""

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
    """Fill environment i's board and place Pacman, ghosts and pills at random, as difficult as `levels_done`
    requires."""
    for place in range(HEIGHT * WIDTH):
        state.board[i, place] = FULL_BOARD[place]
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
    """A random place that is not a wall."""
    while True:
        place = (1 + integer(random, i, ROWS)) * WIDTH + 1 + integer(random, i, COLS)
        if FULL_BOARD[place] != WALL:
            return place


@kernel
def distant_corridor(random: Array, i: int, pacman: int) -> int:
    """A random place that is neither a wall nor near Pacman."""
    while True:
        place = corridor(random, i)
        down, right = place // WIDTH - pacman // WIDTH, place % WIDTH - pacman % WIDTH
        near = -SAFE_DISTANCE <= down < SAFE_DISTANCE and -SAFE_DISTANCE <= right < SAFE_DISTANCE
        if not near:
            return place
