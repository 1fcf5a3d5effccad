"""Two POPGym tasks on a board of which only the cell of the last action is observed: Battleship and MineSweeper."""

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..randomness import integer
from ..single import single
from .cards import Params, State, clear, one_hot
from .game import BACK, CLASS, BoardBatch, symbols_of

SHIPS = (2, 3, 3, 4)  # Cells of each ship


def _battleship(side: int) -> Params:
    cells, ships = side * side, sum(SHIPS)
    return Params(cells, cells, 1 / ships, -1 / (cells - ships), side=side, targets=ships, occupied=ships)


@kernel
def start_battleship(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: place the ships."""
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
    """Shoot; return (reward, whether all ships are sunk, whether time has run out first)."""
    hit = state.hidden[i, action] > 0 and state.marks[i, action] == 0
    state.marks[i, action] = 1
    state.step[i] += 1
    state.left[i] -= hit
    state.shown[i, 0] = hit
    sunk = state.left[i] == 0
    return params.right if hit else params.wrong, sunk, state.step[i] == params.num_steps and not sunk


@kernel
def observe_battleship(state: State, params: Params, i: int, vector: Array) -> None:
    """Write whether the last shot hit, as a one-hot [2]."""
    one_hot(vector, 0, 2, state.shown[i, 0])


class PopgymBattleshipBatch(BoardBatch):
    """N games of Battleship (POPGym): sink four ships on a board that is never shown.

    Description:
        Ships of 2, 3, 3 and 4 cells lie horizontally or vertically on a board of 8 x 8 (easy), 10 x 10 (medium) or
        12 x 12 (hard) cells; they may touch. A second shot at the same cell is a miss. The agent observes
        neither the board nor its earlier shots: it needs its previous actions.

    Actions: row * side + column of the cell to shoot at.

    Observations: uint8 [2], one-hot: 0 miss, 1 hit; a miss at the start.

    Start: each ship in turn at a random place where it fits.

    Rewards: 1/12 for a hit, -1 / (cells - 12) for a miss. At best 1; shooting once at each cell earns 0.

    Episode end: terminated when all ships are sunk; truncated after as many shots as there are cells.

    Differences from popgym: its actions are (row, column); here, an episode that terminates in its last step is
        not also truncated.
    """

    symbols = symbols_of((CLASS, "miss"), (CLASS + 1, "hit; with v a ship"), (CLASS + 2, "with v: a ship that was hit"))
    tasks = {"easy": _battleship(8), "medium": _battleship(10), "hard": _battleship(12)}  # noqa: RUF012
    action_names = BoardBatch.actions(tasks["easy"])
    level_keys = ("ships",)
    loops = batch_loops(start_battleship, advance_battleship, observe_battleship)


PopgymBattleship = single(PopgymBattleshipBatch)


def _mine_sweeper(side: int, mines: int) -> Params:
    free = side * side - mines
    values = min(mines + 1, 10)
    right, wrong, lost = 1 / free, -0.5 / (free - 2), -0.5 - 1 / free
    return Params(side * side, free, right, wrong, lost, classes=values, side=side, targets=free, occupied=mines)


@kernel
def start_mine_sweeper(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: each cell in turn gets a mine with the probability that yields the correct
    total."""
    mines = params.occupied
    for cell in range(params.size):
        mine = integer(state.random, i, params.size - cell) < mines
        state.hidden[i, cell] = mine
        mines -= mine
    clear(state, params, i)


@kernel
def advance_mine_sweeper(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Open a cell; return (reward, whether the game is lost or won, whether time has run out first)."""
    mine, opened = state.hidden[i, action] > 0, state.marks[i, action] > 0
    state.step[i] += 1
    state.shown[i, 0] = mines_around(state, params, i, action)
    reward = params.lost if mine else params.wrong if opened else params.right
    if not mine and not opened:
        state.marks[i, action] = 1
        state.left[i] -= 1
    over = mine or state.left[i] == 0
    return reward, over, state.step[i] == params.num_steps and not over


@kernel
def mines_around(state: State, params: Params, i: int, cell: int) -> int:
    """Count the mines in the 3 x 3 cells around a cell, inside the board."""
    side, mines = params.side, 0
    row, col = cell // side, cell % side
    for r in range(max(row - 1, 0), min(row + 2, side)):
        for c in range(max(col - 1, 0), min(col + 2, side)):
            mines += state.hidden[i, r * side + c]
    return mines


@kernel
def observe_mine_sweeper(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the number of mines around the cell opened last, as a one-hot."""
    one_hot(vector, 0, params.classes, state.shown[i, 0])


class PopgymMineSweeperBatch(BoardBatch):
    """N games of MineSweeper (POPGym): open all free cells of a board that is never shown.

    Description:
        The board has 4 x 4 cells with 2 mines (easy), 6 x 6 with 6 (medium) or 8 x 8 with 10 (hard). An
        action opens a cell and reports the number of mines in the 3 x 3 cells around it, itself included. The agent
        observes neither the board nor the cells it has opened: it needs its previous actions.

    Actions: row * side + column of the cell to open.

    Observations: uint8 [3] (easy), [7] (medium) or [10] (hard): the one-hot number of mines around the cell opened
        last; 0 at the start.

    Start: mines on distinct random cells.

    Rewards: with F free cells, 1/F for a free cell; -0.5 / (F - 2) for one that was opened before; -0.5 - 1/F for a
        mine. At best 1.

    Episode end: terminated by a mine or when all free cells are open; truncated after F steps.

    Differences from popgym: its actions are (row, column).
    """

    symbols = symbols_of(
        (CLASS, "no mine near"), (CLASS + 1, "one; with v a mine"), (BACK, "with v: a cell that was opened")
    )
    tasks = {"easy": _mine_sweeper(4, 2), "medium": _mine_sweeper(6, 6), "hard": _mine_sweeper(8, 10)}  # noqa: RUF012
    action_names = BoardBatch.actions(tasks["easy"])
    level_keys = ("mines",)
    loops = batch_loops(start_mine_sweeper, advance_mine_sweeper, observe_mine_sweeper)


PopgymMineSweeper = single(PopgymMineSweeperBatch)
