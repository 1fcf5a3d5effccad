"""Decks of cards, boards of cells, and functions shared by the kernels of all POPGym tasks.

Card c of a pack of D decks is in 0..52 D - 1. Its rank is c // 4 mod 13, its suit c mod 4, and its color c mod 2.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
from ..randomness import integer

DECK = 52  # Cards in a deck
NONE = -1  # No card or cell


class Kind(NamedTuple):
    """The feature of cards that matters in a task."""

    divisor: int
    classes: int
    names: tuple[str, ...]

    def of(self, cards: Array) -> Array:
        """Return the classes of cards, an integer array of any shape."""
        return cards // self.divisor % self.classes


COLORS = Kind(1, 2, ("black", "red"))
SUITS = Kind(1, 4, ("spades", "diamonds", "clubs", "hearts"))
RANKS = Kind(4, 13, ("ace", *map(str, range(2, 11)), "jack", "queen", "king"))


class State(NamedTuple):
    """N games of one task; L = Params.size."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    step: Array  # int64 [N]: 0 at the first observation
    hidden: Array
    """int16 [N, L]: cards in the order in which they are dealt or lie on the table, or 1 for each occupied cell."""
    marks: Array
    """int16 [N, M]: what changes in the episode: opened cells, or how often each class was dealt."""
    shown: Array
    """int64 [N, 2]: the last action's result, which the observation shows; in Concentration, positions or NONE."""
    pending: Array  # int64 [N]: Concentration: position of the first card of a try, or NONE
    left: Array  # int64 [N]: pairs or cells not yet found


class Params(NamedTuple):
    """The constants of a task at one difficulty, in the form that compiled functions use."""

    size: int  # L: cards of all packs together, or cells of the board
    num_steps: int  # Steps of the longest episode
    right: float  # Reward of a correct action
    wrong: float  # Reward of a wrong one
    lost: float = 0.0  # Reward of the action that loses the game
    divisor: int = 1  # See Kind
    classes: int = 2  # Classes of cards, or values that a cell can show
    lag: int = 1  # Repeat Previous: k
    side: int = 1  # Rows and columns of the board
    targets: int = 0  # Pairs or cells to be found
    occupied: int = 0  # Cells with a ship or a mine


def new_state(num_envs: int, size: int, num_marks: int) -> State:
    return zeroed(State, num_envs, hidden=(np.int16, size), marks=(np.int16, num_marks), shown=(np.int64, 2))


@kernel
def shuffle(state: State, i: int, first: int, size: int) -> None:
    """Put cards 0..size - 1 in random order into positions first.. of `hidden` (Fisher and Yates, inside out)."""
    for k in range(size):
        other = integer(state.random, i, k + 1)
        state.hidden[i, first + k] = state.hidden[i, first + other]
        state.hidden[i, first + other] = k


@kernel
def clear(state: State, params: Params, i: int) -> None:
    """Go to step 0 of the level in `hidden`, with nothing marked or shown."""
    state.step[i], state.left[i], state.pending[i] = 0, params.targets, NONE
    state.shown[i, 0], state.shown[i, 1] = 0, 0
    for k in range(state.marks.shape[1]):
        state.marks[i, k] = 0


@kernel
def class_of(state: State, params: Params, i: int, position: int) -> int:
    """Return the class of the card at a position of `hidden`."""
    return state.hidden[i, position] // params.divisor % params.classes


@kernel
def one_hot(vector: Array, first: int, size: int, value: int) -> None:
    """Write a one-hot of `size` values into `vector` from position `first` on."""
    for k in range(size):
        vector[first + k] = k == value


@kernel
def deal(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: shuffle all cards."""
    shuffle(state, i, 0, params.size)
    clear(state, params, i)


@kernel
def show_last(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the class of the card dealt last into `vector` [C], as a one-hot."""
    one_hot(vector, 0, params.classes, class_of(state, params, i, state.step[i]))
