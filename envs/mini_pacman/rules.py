"""The rules of Mini-Pacman for one environment."""

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..randomness import integer, mixed, uniform
from .levels import COLS, EMPTY, FOOD, FULL_BOARD, HEIGHT, ROWS, WALL, WIDTH, Params, State, start_level

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


def _exits() -> tuple[Array, Array]:
    """Open headings at every cell, int64 [HEIGHT * WIDTH, 4] in the order right, up, left, down, and their count."""
    exits, count = np.zeros((HEIGHT * WIDTH, 4), np.int64), np.zeros(HEIGHT * WIDTH, np.int64)
    for cell in np.flatnonzero(FULL_BOARD != WALL):
        for heading in (2, 3, 4, 5):
            if FULL_BOARD[cell + STEP[heading]] != WALL:
                exits[cell, count[cell]] = heading
                count[cell] += 1
    return exits, count


EXITS, NUM_EXITS = _exits()


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i. The reflection is computed from the level's random stream, which is
    not advanced."""
    state.reflection[i] = int(mixed(state.random[i] ^ _SALT) >> np.uint64(62)) if params.reflect else 0
    state.frame[i], state.levels_done[i] = 0, 0
    start_level(state, params, i)


@kernel
def next_level(state: State, params: Params, i: int) -> None:
    """Continue with the next level in environment i."""
    state.levels_done[i] += 1
    start_level(state, params, i)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Step environment i; return (reward, whether Pacman died, whether the frame cap is reached)."""
    if state.level_steps[i] == params.level_limit:
        next_level(state, params, i)
    state.frame[i] += 1
    state.level_steps[i] += 1
    state.power[i] = max(0, state.power[i] - 1)
    reward = params.step_reward + move_pacman(state, params, i, action)
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
        reward += params.food_reward
        state.board[i, cell] = EMPTY
        state.food_left[i] -= 1
        if state.food_left[i] == 0 and params.all_food:
            next_level(state, params, i)
    for p in range(state.num_pills[i]):
        if state.pills[i, p] == state.pacman[i]:
            reward += params.pill_reward
            state.num_pills[i] -= 1
            state.pills[i, p] = state.pills[i, state.num_pills[i]]
            state.power[i] = params.power_steps
            if state.num_pills[i] == 0 and params.all_pills:
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
                    return reward + params.ghost_reward, died
                reward, died = reward + params.death_reward, True
    return reward, died


@kernel
def eat_ghost(state: State, params: Params, i: int, g: int) -> None:
    """Remove ghost g of environment i; the others keep their order."""
    state.num_ghosts[i] -= 1
    for later in range(g, state.num_ghosts[i]):
        state.ghosts[i, later], state.headings[i, later] = state.ghosts[i, later + 1], state.headings[i, later + 1]
    if state.num_ghosts[i] == 0 and params.all_ghosts:
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
    """Write the observation of environment i: RGB of its window [5, 5, 3] or [29, 37, 3], or of the map [15, 19,
    3]."""
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
            image[y, x, 0] = PALETTE[thing, 0]
            image[y, x, 1] = PALETTE[thing, 1]
            image[y, x, 2] = PALETTE[thing, 2]
    for p in range(state.num_pills[i]):
        paint(image, state.pills[i, p], top, left, reflection, PILL_COLOR)
    edible = int(255 * state.power[i] / params.power_steps + 0.5)
    for g in range(state.num_ghosts[i]):
        paint(image, state.ghosts[i, g], top, left, reflection, (255, int(edible), 0))
    paint(image, state.pacman[i], top, left, reflection, PACMAN_COLOR)


@kernel
def paint(image: Array, cell: int, top: int, left: int, reflection: int, color: tuple[int, int, int]) -> None:
    """Color one cell, if it lies inside the image whose corner is (top, left) before reflection."""
    r, c = cell // WIDTH - top, cell % WIDTH - left
    r = image.shape[0] - 1 - r if reflection & 2 else r
    c = image.shape[1] - 1 - c if reflection & 1 else c
    if 0 <= r < image.shape[0] and 0 <= c < image.shape[1]:
        image[r, c, 0], image[r, c, 1], image[r, c, 2] = color
