"""The rules of Mini-Pacman for one environment, and how its levels start.

A cell is a single index: (r, c) on the 15 x 19 map is (r + 1) * WIDTH + c + 1 on a board with an additional rim of
walls, so that no window of 5 x 5 cells extends beyond it and a move is an addition.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..randomness import integer, mixed, uniform

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
WINDOW = 5
AROUND = 2 * ROWS - 1, 2 * COLS - 1  # Rows and columns of a window that shows the whole map wherever Pacman is
ACTION_NAMES = ("stay", "right", "up", "left", "down")
MOVES = np.array([0, 1, -WIDTH, -1, WIDTH])  # Change of the cell index for every action
REFLECTED = np.array([[0, 1, 2, 3, 4], [0, 3, 2, 1, 4], [0, 1, 4, 3, 2], [0, 3, 4, 1, 2]])
"""The unreflected action for every reflection and action."""
_SALT = np.uint64(0xD1B54A32D192ED03)

# Headings of ghosts: 2 right, 3 up, 4 left, 5 down. A level starts with headings 0..3, as in the original. The reverse
# of 0 is right and that of 1 is up; a ghost that keeps heading 0 moves down, and one that keeps heading 1 stays.
STEP = np.array([WIDTH, 0, 1, -WIDTH, -1, WIDTH])
REVERSE = np.array([2, 3, 4, 5, 2, 3])
DOWN, RIGHT = np.array([0, 0, 0, -1, 0, 1]), np.array([0, 0, 1, 0, -1, 0])

PALETTE = np.array([[0, 0, 0], [0, 0, 255], [255, 255, 255]], np.uint8)  # Colors of EMPTY, FOOD and WALL
PACMAN_COLOR, PILL_COLOR = (0, 255, 0), (0, 255, 255)
_MAP_CELLS = np.array([[WALL if mark == "#" else FOOD for mark in line] for line in MAP], np.int8)
FULL_BOARD = np.pad(_MAP_CELLS, 1, constant_values=WALL).ravel()
"""Board at the start of a level, with food in every corridor: int8 [HEIGHT * WIDTH]."""
NUM_FOOD = int((FULL_BOARD == FOOD).sum())

EXITS, NUM_EXITS = np.zeros((HEIGHT * WIDTH, 4), np.int64), np.zeros(HEIGHT * WIDTH, np.int64)
"""Open headings at every cell, int64 [HEIGHT * WIDTH, 4] in the order right, up, left, down, and their count."""
for _cell in np.flatnonzero(FULL_BOARD != WALL):
    _open = [heading for heading in (2, 3, 4, 5) if FULL_BOARD[_cell + STEP[heading]] != WALL]
    EXITS[_cell, : len(_open)], NUM_EXITS[_cell] = _open, len(_open)


class Task(NamedTuple):
    """Rewards, and the conditions that end a level."""

    step_reward: float
    food_reward: float
    pill_reward: float
    ghost_reward: float
    death_reward: float
    all_food: bool  # The level is done when all food is eaten; likewise for pills and ghosts.
    all_pills: bool
    all_ghosts: bool
    level_limit: int  # The level is done after this many steps; -1: never.


TASKS = {
    "regular": Task(0.0, 1.0, 2.0, 5.0, 0.0, True, False, False, -1),
    "avoid": Task(0.1, -0.1, -5.0, -10.0, -20.0, True, False, False, 128),
    "hunt": Task(0.0, 0.0, 1.0, 10.0, -20.0, False, False, True, -1),
    "ambush": Task(0.0, -0.1, 0.0, 10.0, -20.0, False, False, True, -1),
    "rush": Task(0.0, -0.1, 10.0, 0.0, 0.0, False, True, False, -1),
}


class State(NamedTuple):
    """N games with at most P power pills."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    board: Array  # int8 [N, HEIGHT * WIDTH]: EMPTY, FOOD or WALL
    food_left: Array  # int64 [N]: food on the board
    pacman: Array  # int64 [N]: Pacman's cell
    ghosts: Array  # int64 [N, MAX_GHOSTS]: cells of the ghosts; the first `num_ghosts` count
    headings: Array  # int64 [N, MAX_GHOSTS]: headings of the ghosts, as indices of STEP
    num_ghosts: Array  # int64 [N]: ghosts alive
    pills: Array  # int64 [N, P]: cells of the power pills; the first `num_pills` count
    num_pills: Array  # int64 [N]: power pills left
    power: Array  # int64 [N]: remaining steps in which ghosts can be eaten
    frame: Array  # int64 [N]: steps of this episode
    level_steps: Array  # int64 [N]: steps of this level
    levels_done: Array  # int64 [N]: levels completed in this episode
    reflection: Array  # int64 [N]: mirroring of the episode: 0 none, 1 left to right, 2 top to bottom, 3 both


class Params(NamedTuple):
    task: Task
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


@kernel
def start(state: State, params: Params, i: int) -> None:
    # the reflection is computed from the level's random stream, which is not advanced
    state.reflection[i] = int(mixed(state.random[i] ^ _SALT) >> np.uint64(62)) if params.reflect else 0
    state.frame[i], state.levels_done[i] = 0, 0
    start_level(state, params, i)


@kernel
def start_level(state: State, params: Params, i: int) -> None:
    """Fill the board and place Pacman, ghosts and pills at random; `levels_done` determines the difficulty."""
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
    while True:
        cell = (1 + integer(random, i, ROWS)) * WIDTH + 1 + integer(random, i, COLS)
        if FULL_BOARD[cell] != WALL:
            return cell


@kernel
def distant_corridor(random: Array, i: int, pacman: int) -> int:
    while True:
        cell = corridor(random, i)
        down, right = cell // WIDTH - pacman // WIDTH, cell % WIDTH - pacman % WIDTH
        if not (-SAFE_DISTANCE <= down < SAFE_DISTANCE and -SAFE_DISTANCE <= right < SAFE_DISTANCE):
            return cell


@kernel
def next_level(state: State, params: Params, i: int) -> None:
    state.levels_done[i] += 1
    start_level(state, params, i)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    if state.level_steps[i] == params.task.level_limit:
        next_level(state, params, i)
    state.frame[i] += 1
    state.level_steps[i] += 1
    state.power[i] = max(0, state.power[i] - 1)
    reward = params.task.step_reward + move_pacman(state, params, i, action)
    gained, died = move_ghosts(state, params, i)
    return reward + gained, died, not died and state.frame[i] >= params.frame_cap


@kernel
def move_pacman(state: State, params: Params, i: int, action: int) -> float:
    """Move Pacman; eat food and at most one pill. If the food ended the level, a pill is eaten in the new one."""
    cell = state.pacman[i] + MOVES[REFLECTED[state.reflection[i], action]]
    if FULL_BOARD[cell] == WALL:
        cell = state.pacman[i]
    state.pacman[i] = cell
    reward = 0.0
    if state.board[i, cell] == FOOD:
        reward += params.task.food_reward
        state.board[i, cell] = EMPTY
        state.food_left[i] -= 1
        if state.food_left[i] == 0 and params.task.all_food:
            next_level(state, params, i)
    for p in range(state.num_pills[i]):
        if state.pills[i, p] == state.pacman[i]:
            reward += params.task.pill_reward
            state.num_pills[i] -= 1
            state.pills[i, p] = state.pills[i, state.num_pills[i]]
            state.power[i] = params.power_steps
            if state.num_pills[i] == 0 and params.task.all_pills:
                next_level(state, params, i)
            break
    return reward


@kernel
def move_ghosts(state: State, params: Params, i: int) -> tuple[float, bool]:
    """Move each ghost with the probability of its speed; return (reward, whether Pacman died). Pacman meets a ghost
    before or after the ghost's move. Eating a ghost ends the ghosts' turn; a death does not."""
    reward, died = 0.0, False
    speed = params.ghost_speed + params.ghost_acceleration * state.levels_done[i]
    if state.power[i] > 0:
        speed *= 0.5
    for g in range(state.num_ghosts[i]):
        for moved in (False, True):
            if moved:
                if uniform(state.random, i) >= speed:
                    break
                move_ghost(state, params, i, g)
            if state.ghosts[i, g] == state.pacman[i]:
                if state.power[i] > 0:
                    eat_ghost(state, params, i, g)
                    return reward + params.task.ghost_reward, died
                reward, died = reward + params.task.death_reward, True
    return reward, died


@kernel
def eat_ghost(state: State, params: Params, i: int, g: int) -> None:
    state.num_ghosts[i] -= 1
    for later in range(g, state.num_ghosts[i]):
        state.ghosts[i, later], state.headings[i, later] = state.ghosts[i, later + 1], state.headings[i, later + 1]
    if state.num_ghosts[i] == 0 and params.task.all_ghosts:
        next_level(state, params, i)


@kernel
def move_ghost(state: State, params: Params, i: int, g: int) -> None:
    """Turn ghost g of environment i and move it, unless a wall is ahead."""
    cell = state.ghosts[i, g]
    heading = follow_corridor(cell, state.headings[i, g]) if NUM_EXITS[cell] == 2 else pursue(state, params, i, g)
    state.headings[i, g] = heading
    if FULL_BOARD[cell + STEP[heading]] != WALL:
        state.ghosts[i, g] = cell + STEP[heading]


@kernel
def follow_corridor(cell: int, heading: int) -> int:
    """Choose a heading between two exits: straight ahead if possible, otherwise the exit that does not lead back."""
    first, second = EXITS[cell, 0], EXITS[cell, 1]
    if heading == first or heading == second:
        return heading
    return second if REVERSE[heading] == first else first


@kernel
def pursue(state: State, params: Params, i: int, g: int) -> int:
    """Choose the exit of a crossing that points most toward Pacman (away while Pacman has power), never back. The
    score of an exit is direction . (Pacman - ghost); ties go to the first. While Pacman has no power, with probability
    `ghost_randomness`, the ghost takes a uniformly random exit instead."""
    cell, heading, pacman = state.ghosts[i, g], state.headings[i, g], state.pacman[i]
    if cell == pacman:
        return heading
    down, right = pacman // WIDTH - cell // WIDTH, pacman % WIDTH - cell % WIDTH
    if state.power[i] > 0:
        down, right = -down, -right
    errs = state.power[i] == 0 and uniform(state.random, i) < params.ghost_randomness
    best, chosen = -(2**30), heading
    for k in range(NUM_EXITS[cell]):
        way = EXITS[cell, k]
        if way != REVERSE[heading]:
            score = integer(state.random, i, 2**30) if errs else down * DOWN[way] + right * RIGHT[way]
            if score > best:
                best, chosen = score, way
    return chosen


@kernel
def observe(state: State, params: Params, i: int, image: Array) -> None:
    """Write the observation: RGB of Pacman's window, [5, 5, 3] or [29, 37, 3], or of the map, [15, 19, 3]."""
    rows, cols = image.shape[0], image.shape[1]
    top, left, reflection = 1, 1, state.reflection[i]
    if params.centered or not params.full_view:
        top, left = state.pacman[i] // WIDTH - rows // 2, state.pacman[i] % WIDTH - cols // 2
    for r in range(rows):
        for c in range(cols):
            inside = 0 <= top + r < HEIGHT and 0 <= left + c < WIDTH
            thing = state.board[i, (top + r) * WIDTH + left + c] if inside else WALL
            y = rows - 1 - r if reflection & 2 else r
            x = cols - 1 - c if reflection & 1 else c
            for channel in range(3):
                image[y, x, channel] = PALETTE[thing, channel]
    for p in range(state.num_pills[i]):
        paint(image, state.pills[i, p], top, left, reflection, PILL_COLOR)
    edible = int(255 * state.power[i] / params.power_steps + 0.5)
    for g in range(state.num_ghosts[i]):
        paint(image, state.ghosts[i, g], top, left, reflection, (255, edible, 0))
    paint(image, state.pacman[i], top, left, reflection, PACMAN_COLOR)


@kernel
def paint(image: Array, cell: int, top: int, left: int, reflection: int, color: tuple[int, int, int]) -> None:
    """Color one cell, if it lies inside the image whose corner is (top, left) before reflection."""
    r, c = cell // WIDTH - top, cell % WIDTH - left
    r = image.shape[0] - 1 - r if reflection & 2 else r
    c = image.shape[1] - 1 - c if reflection & 1 else c
    if 0 <= r < image.shape[0] and 0 <= c < image.shape[1]:
        image[r, c, 0], image[r, c, 1], image[r, c, 2] = color
