"""Battleship (POPGym): sink ships on a board of which only hit or miss is reported."""

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..randomness import integer
from ..single import single
from .cards import Params, State, clear, one_hot
from .game import CLASS, BoardBatch, symbols_of

SHIPS = (2, 3, 3, 4)  # Cells of each ship


def _task(side: int) -> Params:
    cells, ships = side * side, sum(SHIPS)
    return Params(cells, cells, 1 / ships, -1 / (cells - ships), side=side, targets=ships, occupied=ships)


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: place the ships."""
    for cell in range(params.size):
        state.hidden[i, cell] = 0
    for length in SHIPS:
        place(state, params, i, length)
    clear(state, params, i)


@kernel
def place(state: State, params: Params, i: int, length: int) -> None:
    """Put a ship on free cells: a uniform cell and one of four directions, again until it fits."""
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
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Shoot: (reward, whether all ships are sunk, whether the time is over before)."""
    hit = state.hidden[i, action] > 0 and state.marks[i, action] == 0
    state.marks[i, action] = 1
    state.step[i] += 1
    state.left[i] -= hit
    state.shown[i, 0] = hit
    sunk = state.left[i] == 0
    return params.right if hit else params.wrong, sunk, state.step[i] == params.num_steps and not sunk


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    """Whether the last shot hit: one-hot [2]."""
    one_hot(vector, 0, 2, state.shown[i, 0])


class PopgymBattleshipBatch(BoardBatch):
    """N games of Battleship.

    Description:
        Ships of 2, 3, 3 and 4 cells lie across or down on a board of 8 x 8 (easy), 10 x 10 (medium) or 12 x 12 (hard)
        cells; they may touch. An action shoots at a cell; a second shot at the same cell is a miss. The agent sees
        neither the board nor its earlier shots: it needs its previous actions.

    Actions: row * side + column of a cell.

    Observations: uint8 [2], the one-hot of 0 miss, 1 hit; a miss at the start.

    Start: each ship in turn at a random place where it fits.

    Rewards: 1/12 for a hit, -1 / (cells - 12) for a miss. At best 1; shooting once at each cell 0.

    Episode end: terminated when all ships are sunk; truncated after as many shots as there are cells.

    Differences from popgym: actions there are (row, column); an episode that ends both ways in its last step is
        terminated here, not truncated as well.
    """

    symbols = symbols_of((CLASS, "miss"), (CLASS + 1, "hit; with v a ship"), (CLASS + 2, "with v: a ship that was hit"))
    tasks = {"easy": _task(8), "medium": _task(10), "hard": _task(12)}  # noqa: RUF012
    action_names = BoardBatch.actions(tasks["easy"])
    level_keys = ("ships",)
    loops = batch_loops(start, advance, observe)


PopgymBattleship = single(PopgymBattleshipBatch)
