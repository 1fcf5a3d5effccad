"""MineSweeper (POPGym): open all free cells; only the number of mines near the last one is observed."""

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..randomness import integer
from ..single import single
from .cards import Params, State, clear, one_hot
from .game import BACK, CLASS, BoardBatch, symbols_of


def _task(side: int, mines: int) -> Params:
    free = side * side - mines
    values = min(mines + 1, 10)
    right, wrong, lost = 1 / free, -0.5 / (free - 2), -0.5 - 1 / free
    return Params(side * side, free, right, wrong, lost, classes=values, side=side, targets=free, occupied=mines)


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: each cell has a mine with the probability that leaves the right number of
    them."""
    mines = params.occupied
    for cell in range(params.size):
        mine = integer(state.random, i, params.size - cell) < mines
        state.hidden[i, cell] = mine
        mines -= mine
    clear(state, params, i)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Open a cell: (reward, whether the game is lost or won, whether the time is over before)."""
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
    """Mines in the 3 x 3 cells around a cell, as far as they lie on the board."""
    side, mines = params.side, 0
    row, col = cell // side, cell % side
    for r in range(max(row - 1, 0), min(row + 2, side)):
        for c in range(max(col - 1, 0), min(col + 2, side)):
            mines += state.hidden[i, r * side + c]
    return mines


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    """The mines around the cell opened last: a one-hot."""
    one_hot(vector, 0, params.classes, state.shown[i, 0])


class PopgymMineSweeperBatch(BoardBatch):
    """N games of MineSweeper.

    Description:
        Mines lie on a board of 4 x 4 cells with 2 (easy), 6 x 6 with 6 (medium) or 8 x 8 with 10 mines (hard). An
        action opens a cell and reports the number of mines in the 3 x 3 cells around it, itself included. The agent
        sees neither the board nor the cells it opened: it needs its previous actions.

    Actions: row * side + column of a cell.

    Observations: uint8 [3] (easy), [7] (medium) or [10] (hard): the one-hot number of mines around the cell opened
        last; 0 at the start.

    Start: mines on distinct random cells.

    Rewards: 1/F for a free cell, with F free cells; -0.5 / (F - 2) for one that was opened before; -0.5 - 1/F for a
        mine. At best 1.

    Episode end: terminated by a mine or when all free cells are open; truncated after F steps.

    Differences from popgym: actions there are (row, column).
    """

    symbols = symbols_of(
        (CLASS, "no mine near"), (CLASS + 1, "one; with v a mine"), (BACK, "with v: a cell that was opened")
    )
    tasks = {"easy": _task(4, 2), "medium": _task(6, 6), "hard": _task(8, 10)}  # noqa: RUF012
    action_names = BoardBatch.actions(tasks["easy"])
    level_keys = ("mines",)
    loops = batch_loops(start, advance, observe)


PopgymMineSweeper = single(PopgymMineSweeperBatch)
