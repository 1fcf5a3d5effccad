"""The base class of POPGym tasks, and two tasks on a board that is never shown: Battleship and MineSweeper."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from ...base.compiled import kernel
from ...base.errors import check_choice
from ..arrays import Array, check_cell, zeroed
from ..drawing import Canvas, Color, mosaic
from ..engine import BatchedEnv, batch_loops
from ..randomness import integer
from ..single import single

DIFFICULTIES = ("easy", "medium", "hard")
NONE = -1  # No card or cell
SUIT_NAMES = ("spades", "diamonds", "clubs", "hearts")
PALETTE: tuple[Color, ...] = (
    *((0, 0, 0), (40, 40, 48), (90, 90, 110)),
    *((60, 110, 255), (240, 60, 60), (0, 190, 90), (255, 205, 0), (200, 90, 230), (0, 205, 225), (255, 140, 40)),
    *((150, 200, 80), (240, 130, 170), (130, 100, 60), (200, 200, 210), (110, 140, 180), (245, 235, 170)),
)
DARK, BACK, CLASS = 1, 2, 3  # Colors of a cell that is off, of a card face down, and of class 0; the others follow
SHIPS, SMALLEST = (2, 3, 3, 4), 110  # Cells of each ship, and pixels of an image's shorter side


class State(NamedTuple):
    """N games of one task; L = Params.size."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    step: Array  # int64 [N]: 0 at the first observation
    hidden: Array  # int16 [N, L]: cards in the order in which they are dealt or lie, or 1 for each occupied cell
    marks: Array  # int16 [N, M]: what changes in the episode: opened cells, or how often each class was dealt
    shown: Array  # int64 [N, 2]: the visible result of the last action; in Concentration, positions or NONE
    pending: Array  # int64 [N]: Concentration: position of the first card of a try, or NONE
    left: Array  # int64 [N]: pairs or cells not yet found


class Params(NamedTuple):
    """The constants of a task at one difficulty."""

    size: int  # L: cards of all packs together, or cells of the board
    num_steps: int  # Steps of the longest episode
    right: float  # Reward of a correct action
    wrong: float  # Reward of a wrong one
    lost: float = 0.0  # Reward of the action that loses the game
    divisor: int = 1  # Card c is of class c // divisor mod classes
    classes: int = 2  # Classes of cards, or values that a cell can show
    lag: int = 1  # Repeat Previous: k
    side: int = 1  # Rows and columns of the board
    targets: int = 0  # Pairs or cells to be found
    occupied: int = 0  # Cells with a ship or a mine


class Task(NamedTuple):
    """A task at one difficulty."""

    params: Params
    actions: tuple[str, ...] = SUIT_NAMES
    groups: tuple[int, ...] = (4,)  # Sizes of the one-hots in an observation
    num_marks: int = 0  # M of State


@kernel
def clear(state: State, params: Params, i: int) -> None:
    """Go to step 0 of the level in `hidden`, with nothing marked or shown."""
    state.step[i], state.left[i], state.pending[i] = 0, params.targets, NONE
    state.shown[i, 0], state.shown[i, 1] = 0, 0
    for k in range(state.marks.shape[1]):
        state.marks[i, k] = 0


@kernel
def one_hot(vector: Array, first: int, size: int, value: int) -> None:
    """Write a one-hot of `size` values into `vector` from position `first` on."""
    for k in range(size):
        vector[first + k] = k == value


_COMMON = """
    Args:
        difficulty: "easy", "medium" or "hard": of three values above, the first, second or third.

    References: Morad et al. 2023, "POPGym: Benchmarking partially observable reinforcement learning", appendix A; the
        package popgym 1.0.7, whose observations and rewards are the same at every step.
    """


class PopgymBatch(BatchedEnv):
    """N games of one task. A subclass defines `loops` and `tasks`."""

    tasks: ClassVar[tuple[Task, ...]]  # By difficulty
    state: State
    params: Params

    def __init__(self, num_envs: int, *, difficulty: str = "easy", **batch: Any) -> None:
        check_choice("difficulty", difficulty, DIFFICULTIES)
        params, self.action_names, self.groups, num_marks = self.tasks[DIFFICULTIES.index(difficulty)]
        hidden, marks = (np.int16, params.size), (np.int16, num_marks)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (sum(self.groups),), np.uint8),
            state=zeroed(State, num_envs, hidden=hidden, marks=marks, shown=(np.int64, 2)),
            params=params,
            **batch,
        )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "tasks"):
            cls.action_names = cls.tasks[0].actions
            cls.__doc__ = (cls.__doc__ or "").rstrip(" ") + _COMMON

    def seen(self, index: int) -> Array:
        """Return the observation of environment `index` as colors, int64 [rows, columns]: one row per one-hot."""
        colors = np.full((len(self.groups), max(self.groups)), DARK)
        for row, part in enumerate(np.split(self.observe_all()[index], np.cumsum(self.groups)[:-1])):
            colors[row, part.argmax()] = CLASS + part.argmax()
        return colors

    def table(self, index: int) -> Array:
        """Return the hidden cards or cells of environment `index` as colors, int64 [rows, columns]."""
        raise NotImplementedError

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Draw the observation of environment `index`; with `full`, its hidden cards or cells below it."""
        seen = self.seen(index)
        table = self.table(index) if full else np.zeros((0, 0), np.int64)
        colors = np.zeros((len(seen) + full + len(table), max(seen.shape[1], table.shape[1])), np.int64)
        colors[: len(seen), : seen.shape[1]] = seen
        colors[len(seen) + full :, : table.shape[1]] = table
        return mosaic(np.array(PALETTE)[colors], max(14, -(-SMALLEST // min(colors.shape))))


def _board_task(params: Params) -> Task:
    cells = tuple(f"{row},{col}" for row, col in np.ndindex(params.side, params.side))
    return Task(params, cells, (params.classes,), params.size)


class BoardBatch(PopgymBatch):
    """A task with a square board, on which some cells are occupied; an action opens a cell, row by row."""

    def table(self, index: int) -> Array:
        opened, occupied = self.state.marks[index] > 0, self.state.hidden[index] > 0
        colors = np.where(occupied, CLASS + 1 + opened, np.where(opened, BACK, DARK))
        return colors.reshape(self.params.side, self.params.side)

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: the occupied cells, `[(row, col), ...]`, under one key."""
        cells = np.argwhere(self.state.hidden[index].reshape(self.params.side, -1))
        return {self.level_keys[0]: [(row, col) for row, col in cells.tolist()]}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        (key,), board = self.level_keys, np.zeros((self.params.side, self.params.side), np.int16)
        for cell in level[key]:
            board[check_cell(f"a cell of level[{key!r}]", cell, board == 0)] = 1
        if board.sum() != self.params.occupied:
            raise ValueError(f"level[{key!r}] is {level[key]!r}; expected {self.params.occupied} cells (row, col)")
        self.state.hidden[index] = board.ravel()
        clear(self.state, self.params, index)


@kernel
def show_result(state: State, params: Params, i: int, vector: Array) -> None:
    one_hot(vector, 0, params.classes, state.shown[i, 0])


def _battleship(side: int) -> Task:
    cells, ships = side * side, sum(SHIPS)
    return _board_task(Params(cells, cells, 1 / ships, -1 / (cells - ships), side=side, targets=ships, occupied=ships))


@kernel
def start_battleship(state: State, params: Params, i: int) -> None:
    for cell in range(params.size):
        state.hidden[i, cell] = 0
    for length in SHIPS:
        place(state, params, i, length)
    clear(state, params, i)


@kernel
def place(state: State, params: Params, i: int, length: int) -> None:
    """Put a ship on free cells: sample a uniform cell and one of four directions until it fits."""
    side, placed = params.side, False
    while not placed:
        cell, toward = integer(state.random, i, side * side), integer(state.random, i, 4)
        row, col = cell // side, cell % side
        down, across = (1 - 2 * (toward % 2), 0) if toward < 2 else (0, 1 - 2 * (toward % 2))
        last_row, last_col = row + down * (length - 1), col + across * (length - 1)
        placed = 0 <= last_row < side and 0 <= last_col < side
        for k in range(length if placed else 0):
            placed = placed and state.hidden[i, (row + k * down) * side + col + k * across] == 0
        for k in range(length if placed else 0):
            state.hidden[i, (row + k * down) * side + col + k * across] = 1


@kernel
def advance_battleship(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    hit = state.hidden[i, action] > 0 and state.marks[i, action] == 0
    state.marks[i, action] = 1
    state.step[i] += 1
    state.left[i] -= hit
    state.shown[i, 0] = hit
    sunk = state.left[i] == 0
    return params.right if hit else params.wrong, sunk, state.step[i] == params.num_steps and not sunk


class PopgymBattleshipBatch(BoardBatch):
    """N games of Battleship (POPGym): sink four ships on a board that is never shown.

    Ships of 2, 3, 3 and 4 cells lie at random on a board of 8 x 8, 10 x 10 or 12 x 12 cells; they may touch. A second
    shot at the same cell is a miss. The agent does not see its shots: it needs its previous actions.

    Actions: row * side + column of the cell to shoot at.
    Observations: uint8 [2], one-hot: 0 miss, 1 hit; a miss at the start.
    Rewards: 1/12 for a hit, -1 / (cells - 12) for a miss. At best 1; shooting once at each cell earns 0.
    Episode end: terminated when all ships are sunk; truncated after as many shots as there are cells.
    Differences from popgym: its actions are (row, column); here, an episode that terminates in its last step is
        not also truncated.
    """

    symbols = (
        (PALETTE[CLASS], "miss"),
        (PALETTE[CLASS + 1], "hit; with v a ship"),
        (PALETTE[CLASS + 2], "with v: a ship that was hit"),
    )
    tasks = _battleship(8), _battleship(10), _battleship(12)
    level_keys = ("ships",)
    loops = batch_loops(start_battleship, advance_battleship, show_result)


def _mine_sweeper(side: int, mines: int) -> Task:
    free = side * side - mines
    values = min(mines + 1, 10)
    right, wrong, lost = 1 / free, -0.5 / (free - 2), -0.5 - 1 / free
    params = Params(side * side, free, right, wrong, lost, classes=values, side=side, targets=free, occupied=mines)
    return _board_task(params)


@kernel
def start_mine_sweeper(state: State, params: Params, i: int) -> None:
    """Give each cell in turn a mine with the probability that yields the correct total."""
    mines = params.occupied
    for cell in range(params.size):
        mine = integer(state.random, i, params.size - cell) < mines
        state.hidden[i, cell] = mine
        mines -= mine
    clear(state, params, i)


@kernel
def advance_mine_sweeper(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    side, row, col = params.side, action // params.side, action % params.side
    mine, opened = state.hidden[i, action] > 0, state.marks[i, action] > 0
    state.step[i] += 1
    state.shown[i, 0] = 0
    for r in range(max(row - 1, 0), min(row + 2, side)):
        for c in range(max(col - 1, 0), min(col + 2, side)):
            state.shown[i, 0] += state.hidden[i, r * side + c]
    reward = params.lost if mine else params.wrong if opened else params.right
    if not mine and not opened:
        state.marks[i, action] = 1
        state.left[i] -= 1
    over = mine or state.left[i] == 0
    return reward, over, state.step[i] == params.num_steps and not over


class PopgymMineSweeperBatch(BoardBatch):
    """N games of MineSweeper (POPGym): open all free cells of a board that is never shown.

    The board has 4 x 4 cells with 2 mines at random, 6 x 6 with 6 or 8 x 8 with 10. The agent does not see the cells it
    has opened: it needs its previous actions.

    Actions: row * side + column of the cell to open.
    Observations: uint8 [3], [7] or [10]: the one-hot number of mines in the 3 x 3 cells around the cell opened last,
        itself included; 0 at the start.
    Rewards: with F free cells, 1/F for a free cell; -0.5 / (F - 2) for one that was opened before; -0.5 - 1/F for a
        mine. At best 1.
    Episode end: terminated by a mine or when all free cells are open; truncated after F steps.
    Differences from popgym: its actions are (row, column).
    """

    symbols = (
        (PALETTE[CLASS], "no mine near"),
        (PALETTE[CLASS + 1], "one; with v a mine"),
        (PALETTE[BACK], "with v: a cell that was opened"),
    )
    tasks = _mine_sweeper(4, 2), _mine_sweeper(6, 6), _mine_sweeper(8, 10)
    level_keys = ("mines",)
    loops = batch_loops(start_mine_sweeper, advance_mine_sweeper, show_result)


PopgymBattleship, PopgymMineSweeper = single(PopgymBattleshipBatch), single(PopgymMineSweeperBatch)
