"""Base classes of all POPGym tasks: state, levels and images; each task adds its rules and parameters.

Card c of a pack of D decks is in 0..52 D - 1. Its rank is c // 4 mod 13, its suit c mod 4, and its color c mod 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from ...base.compiled import kernel
from ...base.messages import check_choice, check_numbers
from ..arrays import Array, check_cell, zeroed
from ..drawing import Canvas, Color, mosaic
from ..engine import BatchedEnv
from ..randomness import integer

DECK = 52  # Cards in a deck
NONE = -1  # No card or cell
SUIT_NAMES = ("spades", "diamonds", "clubs", "hearts")
COLORS = {"divisor": 1, "classes": 2}  # Kinds of classes, as fields of Params
SUITS = {"divisor": 1, "classes": 4}
RANKS = {"divisor": 4, "classes": 13}
PALETTE: tuple[Color, ...] = (
    *((0, 0, 0), (40, 40, 48), (90, 90, 110)),
    *((60, 110, 255), (240, 60, 60), (0, 190, 90), (255, 205, 0), (200, 90, 230), (0, 205, 225), (255, 140, 40)),
    *((150, 200, 80), (240, 130, 170), (130, 100, 60), (200, 200, 210), (110, 140, 180), (245, 235, 170)),
)
DARK, BACK, CLASS = 1, 2, 3  # Colors of a cell that is off, of a card face down, and of class 0; the others follow
PACK_WIDTH, SMALLEST = 13, 110  # Cards in a row of an image, and pixels of an image's shorter side


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
    """The constants of a task at one difficulty, in the form that compiled functions use."""

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
    return state.hidden[i, position] // params.divisor % params.classes


@kernel
def one_hot(vector: Array, first: int, size: int, value: int) -> None:
    """Write a one-hot of `size` values into `vector` from position `first` on."""
    for k in range(size):
        vector[first + k] = k == value


@kernel
def deal(state: State, params: Params, i: int) -> None:
    shuffle(state, i, 0, params.size)
    clear(state, params, i)


@kernel
def show_last(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the class of the card dealt last into `vector` [C], as a one-hot."""
    one_hot(vector, 0, params.classes, class_of(state, params, i, state.step[i]))


def board_task(params: Params) -> Task:
    """Return a task with a square board, whose actions are its cells."""
    cells = tuple(f"{row},{col}" for row, col in np.ndindex(params.side, params.side))
    return Task(params, cells, (params.classes,), params.size)


_COMMON = """
    Args:
        difficulty: "easy", "medium" or "hard".

    References: Morad et al. 2023, "POPGym: Benchmarking partially observable reinforcement learning", appendix A; the
        package popgym 1.0.7, whose observations and rewards are the same at every step.
    """


class PopgymBatch(BatchedEnv):
    """N games of one task. A subclass defines `loops` and `tasks`."""

    tasks: ClassVar[Mapping[str, Task]]  # By difficulty
    state: State
    params: Params

    def __init__(self, num_envs: int, *, difficulty: str = "easy", **batch: Any) -> None:
        check_choice("difficulty", difficulty, tuple(self.tasks))
        params, self.action_names, self.groups, num_marks = self.tasks[difficulty]
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
            cls.action_names = cls.tasks["easy"].actions
            cls.__doc__ = (cls.__doc__ or "").rstrip(" ") + _COMMON

    def seen(self, index: int) -> Array:
        """Return the observation of environment `index` as colors, int64 [rows, columns]: one row per one-hot."""
        colors = np.full((len(self.groups), max(self.groups)), DARK)
        for row, part in enumerate(np.split(self.observe_all()[index], np.cumsum(self.groups)[:-1])):
            colors[row, part.argmax()] = CLASS + part.argmax()
        return colors

    def table(self, index: int) -> Array:
        """Return the hidden cards or cells of environment `index` as colors, int64 [rows, columns]."""
        cards = self.state.hidden[index].astype(np.int64)
        return (CLASS + cards // self.params.divisor % self.params.classes).reshape(-1, PACK_WIDTH)

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Draw the observation of environment `index`; with `full`, its hidden cards or cells below it."""
        seen = self.seen(index)
        table = self.table(index) if full else np.zeros((0, 0), np.int64)
        colors = np.zeros((len(seen) + full + len(table), max(seen.shape[1], table.shape[1])), np.int64)
        colors[: len(seen), : seen.shape[1]] = seen
        colors[len(seen) + full :, : table.shape[1]] = table
        return mosaic(np.array(PALETTE)[colors], max(14, -(-SMALLEST // min(colors.shape))))

    def put_deck(self, index: int, level: Mapping[str, Any], key: str, first: int, size: int) -> None:
        """Check that `level[key]` has every card 0..size - 1 once, and copy it to positions first.. of `hidden`."""
        deck = check_numbers(f"level[{key!r}]", level[key], size, size)
        if len(np.unique(deck)) < size:
            raise ValueError(f"level[{key!r}] has a card twice; expected each of 0..{size - 1} once")
        self.state.hidden[index, first : first + size] = deck


class CardBatch(PopgymBatch):
    """A task with one pack of cards, whose level is the order of the cards; by default, an action names a suit."""

    level_keys = ("deck",)
    symbols = tuple((PALETTE[CLASS + k], name) for k, name in enumerate(SUIT_NAMES))

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"deck": [...]}`, cards in the order in which they are dealt or lie."""
        return {"deck": self.state.hidden[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        self.put_deck(index, level, "deck", 0, self.params.size)
        clear(self.state, self.params, index)


class BoardBatch(PopgymBatch):
    """A task with a square board, on which some cells are occupied; an action opens a cell, row by row."""

    def table(self, index: int) -> Array:
        """Return the board as colors: occupied cells, and free ones that were opened."""
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
