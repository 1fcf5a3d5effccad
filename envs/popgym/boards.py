"""Three POPGym tasks on a table or board of which little is observed: Concentration, Battleship and MineSweeper."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..randomness import integer
from ..single import single
from .game import (
    BACK,
    CLASS,
    COLORS,
    DECK,
    NONE,
    PACK_WIDTH,
    PALETTE,
    RANKS,
    BoardBatch,
    CardBatch,
    Params,
    State,
    Task,
    board_task,
    class_of,
    clear,
    deal,
    one_hot,
)

SHIPS = (2, 3, 3, 4)  # Cells of each ship


def _concentration(decks: int, kind: dict[str, int]) -> Task:
    size = DECK * decks
    steps = 2 * size  # ceil(2 n - n / (2 n - 1)): a perfect-memory player's mean number of steps, rounded up
    pairs = size // 2
    params = Params(size, steps, 1 / pairs, -1 / steps, **kind, targets=pairs)
    return Task(params, tuple(map(str, range(size))), (params.classes + 1,) * size, size)


@kernel
def start_concentration(state: State, params: Params, i: int) -> None:
    deal(state, params, i)
    state.shown[i, 0], state.shown[i, 1] = NONE, NONE


@kernel
def advance_concentration(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    first, marks = state.pending[i], state.marks
    cards = 1 if first == NONE else 2
    state.step[i] += 1
    state.shown[i, 0], state.shown[i, 1] = first, action
    reward = 0.0
    if marks[i, action] > 0:
        reward, first = params.wrong * cards, NONE
    elif cards == 1:
        first = action
    else:
        equal = class_of(state, params, i, first) == class_of(state, params, i, action)
        if equal and first != action:
            marks[i, first], marks[i, action] = 1, 1
            state.left[i] -= 1
            reward = params.right
        else:
            reward = 2 * params.wrong
        first = NONE
    state.pending[i] = first
    result = state.left[i] == 0
    return reward, result, state.step[i] == params.num_steps and not result


@kernel
def observe_concentration(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the table into `vector`: a one-hot of each card's class, or of the last value for a card face down."""
    classes, first = params.classes, 0
    one, other = state.shown[i, 0], state.shown[i, 1]
    for position in range(params.size):
        up = state.marks[i, position] > 0 or position == one or position == other
        value = class_of(state, params, i, position) if up else classes
        for k in range(classes + 1):
            vector[first + k] = 0
        vector[first + value] = 1
        first += classes + 1


class PopgymConcentrationBatch(CardBatch):
    """N games of Concentration (POPGym): turn up pairs of equal cards on a table of face-down cards.

    Cards lie face down. An action turns up one card, and every second card ends a try: equal cards stay face up,
    others are turned down again after one observation. Turning up a card that is already face up also ends a
    try. Cards of the same color (easy, medium) or rank (hard) are equal.

    Actions: the position of a card, 0 to 52 D - 1, with D decks: 1 (easy, hard) or 2 (medium).
    Observations: uint8 [156] (easy), [312] (medium) or [728] (hard): for each position the one-hot class of the card
        that is face up there; the last value of each one-hot means face down.
    Start: all cards face down, shuffled.
    Rewards: 1 / (26 D) for a pair; -1 / T for each card of a failed try, with at most T steps. At best 1.
    Episode end: terminated when all cards are face up; truncated after T = 104 (easy, hard) or 208 (medium) steps.
    Differences from popgym: here, an episode that terminates in its last step is not also truncated.
    """

    symbols = ((PALETTE[BACK], "a card face down"), (PALETTE[CLASS], "a card of the first class"))
    tasks = {"easy": _concentration(1, COLORS), "medium": _concentration(2, COLORS), "hard": _concentration(1, RANKS)}  # noqa: RUF012
    loops = batch_loops(start_concentration, advance_concentration, observe_concentration)

    def seen(self, index: int) -> Array:
        """Return the table as colors [rows, 13]."""
        values = self.observe_all()[index].reshape(self.params.size, -1).argmax(1)
        return np.where(values < self.params.classes, CLASS + values, BACK).reshape(-1, PACK_WIDTH)

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        super().place_level(index, level)
        self.state.shown[index] = NONE


PopgymConcentration = single(PopgymConcentrationBatch)


def _battleship(side: int) -> Task:
    cells, ships = side * side, sum(SHIPS)
    params = Params(cells, cells, 1 / ships, -1 / (cells - ships), side=side, targets=ships, occupied=ships)
    return board_task(params)


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


@kernel
def observe_battleship(state: State, params: Params, i: int, vector: Array) -> None:
    one_hot(vector, 0, 2, state.shown[i, 0])


class PopgymBattleshipBatch(BoardBatch):
    """N games of Battleship (POPGym): sink four ships on a board that is never shown.

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

    symbols = (
        (PALETTE[CLASS], "miss"),
        (PALETTE[CLASS + 1], "hit; with v a ship"),
        (PALETTE[CLASS + 2], "with v: a ship that was hit"),
    )
    tasks = {"easy": _battleship(8), "medium": _battleship(10), "hard": _battleship(12)}  # noqa: RUF012
    level_keys = ("ships",)
    loops = batch_loops(start_battleship, advance_battleship, observe_battleship)


PopgymBattleship = single(PopgymBattleshipBatch)


def _mine_sweeper(side: int, mines: int) -> Task:
    free = side * side - mines
    values = min(mines + 1, 10)
    right, wrong, lost = 1 / free, -0.5 / (free - 2), -0.5 - 1 / free
    params = Params(side * side, free, right, wrong, lost, classes=values, side=side, targets=free, occupied=mines)
    return board_task(params)


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


@kernel
def observe_mine_sweeper(state: State, params: Params, i: int, vector: Array) -> None:
    one_hot(vector, 0, params.classes, state.shown[i, 0])


class PopgymMineSweeperBatch(BoardBatch):
    """N games of MineSweeper (POPGym): open all free cells of a board that is never shown.

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

    symbols = (
        (PALETTE[CLASS], "no mine near"),
        (PALETTE[CLASS + 1], "one; with v a mine"),
        (PALETTE[BACK], "with v: a cell that was opened"),
    )
    tasks = {"easy": _mine_sweeper(4, 2), "medium": _mine_sweeper(6, 6), "hard": _mine_sweeper(8, 10)}  # noqa: RUF012
    level_keys = ("mines",)
    loops = batch_loops(start_mine_sweeper, advance_mine_sweeper, observe_mine_sweeper)


PopgymMineSweeper = single(PopgymMineSweeperBatch)
