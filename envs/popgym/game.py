"""Base classes of all POPGym tasks: spaces, levels and images; each task adds its rules and parameters."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ...base.messages import check_choice, check_numbers
from ..arrays import Array, check_cell
from ..drawing import BLACK, Canvas, Color
from ..engine import BatchedEnv
from .cards import SUITS, Params, State, clear, new_state

DIFFICULTIES = ("easy", "medium", "hard")
_DARK, _BACK = (40, 40, 48), (90, 90, 110)
_CLASSES: tuple[Color, ...] = (
    *((60, 110, 255), (240, 60, 60), (0, 190, 90), (255, 205, 0), (200, 90, 230), (0, 205, 225), (255, 140, 40)),
    *((150, 200, 80), (240, 130, 170), (130, 100, 60), (200, 200, 210), (110, 140, 180), (245, 235, 170)),
)
PALETTE = (_DARK, _BACK, *_CLASSES)
DARK, BACK, CLASS = 0, 1, 2
"""Colors of a cell that is off, of a card face down, and of class 0; the other classes follow."""
PACK_WIDTH, SMALLEST = 13, 110  # Cards in a row of an image, and pixels of an image's shorter side


def symbols_of(*symbols: tuple[int, str]) -> tuple[tuple[Color, str], ...]:
    """Colors of PALETTE, by index, and their meaning."""
    return tuple((PALETTE[color], text) for color, text in symbols)


_COMMON = """
    Args:
        num_envs: number of environments.
        difficulty: "easy", "medium" or "hard".
        batch: `first_index` and `render_mode`, see BatchedEnv.

    References: Morad et al. 2023, "POPGym: Benchmarking partially observable reinforcement learning", appendix A; the
        package popgym 1.0.7, whose observations and rewards are the same at every step.
    """


class PopgymBatch(BatchedEnv):
    """N games of one task. A subclass defines `loops`, `tasks` and the layout of observations."""

    tasks: ClassVar[Mapping[str, Params]]  # By difficulty
    state: State
    params: Params

    def __init__(self, num_envs: int, *, difficulty: str = "easy", **batch: Any) -> None:
        check_choice("difficulty", difficulty, DIFFICULTIES)
        params = self.tasks[difficulty]
        self.action_names = self.actions(params)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (sum(self.groups(params)),), np.uint8),
            state=new_state(num_envs, params.size, self.num_marks(params)),
            params=params,
            **batch,
        )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__doc__ = (cls.__doc__ or "").rstrip(" ") + _COMMON

    # -- overridden by tasks -----------------------------------------------------------------------------------------

    @classmethod
    def actions(cls, params: Params) -> tuple[str, ...]:
        """Names of the actions."""
        return cls.action_names

    @classmethod
    def groups(cls, params: Params) -> list[int]:
        """Sizes of the one-hots in an observation."""
        return [params.classes]

    @classmethod
    def num_marks(cls, params: Params) -> int:
        """M of State."""
        return 0

    def seen(self, index: int) -> Array:
        """Return the observation of environment `index` as colors, int64 [rows, columns]: one row per one-hot."""
        observation, groups = self.observe(index), self.groups(self.params)
        colors = np.full((len(groups), max(groups)), DARK)
        first = 0
        for row, size in enumerate(groups):
            (value,) = np.flatnonzero(observation[first : first + size])
            colors[row, value], first = CLASS + value % len(_CLASSES), first + size
        return colors

    def table(self, index: int) -> Array:
        """Return the hidden cards or cells of environment `index` as colors, int64 [rows, columns]."""
        cards = self.state.hidden[index].astype(np.int64)
        return (CLASS + cards // self.params.divisor % self.params.classes).reshape(-1, PACK_WIDTH)

    def begin(self, index: int) -> None:
        """Go to step 0 of the level in `hidden` of environment `index`."""
        clear(self.state, self.params, index)

    # ----------------------------------------------------------------------------------------------------------------

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Draw the observation of environment `index`; with `full`, its hidden cards or cells below it."""
        seen = self.seen(index)
        table = self.table(index) if full else np.zeros((0, 0), np.int64)
        gap = int(full)
        shape = len(seen) + gap + len(table), max(seen.shape[1], table.shape[1])
        canvas = Canvas(*shape, cell=max(14, -(-SMALLEST // min(shape))), background=BLACK, smooth=1)
        for top, colors in ((0, seen), (len(seen) + gap, table)):
            for row, col in np.ndindex(*colors.shape):
                canvas.fill(top + row + 0.05, col + 0.05, PALETTE[colors[row, col]], 0.9, 0.9)
        return canvas

    def put_deck(self, index: int, level: Mapping[str, Any], key: str, first: int, size: int) -> None:
        """Check that `level[key]` has every card 0..size - 1 once, and copy it to positions first.. of `hidden`."""
        deck = check_numbers(f"level[{key!r}]", level[key], size, size)
        if len(np.unique(deck)) < size:
            raise ValueError(f"level[{key!r}] has a card twice; expected each of 0..{size - 1} once")
        self.state.hidden[index, first : first + size] = deck


class CardBatch(PopgymBatch):
    """A task with one pack of cards, whose level is the order of the cards."""

    level_keys = ("deck",)

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"deck": [...]}`, cards in the order in which they are dealt or lie."""
        return {"deck": self.state.hidden[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        """Put environment `index` at the start of a level."""
        self.put_deck(index, level, "deck", 0, self.params.size)
        self.begin(index)


class SuitBatch(CardBatch):
    """A task with one pack of cards, in which an action names a suit."""

    symbols = symbols_of(*((CLASS + k, name) for k, name in enumerate(SUITS.names)))
    action_names = SUITS.names


class BoardBatch(PopgymBatch):
    """A task with a square board, on which some cells are occupied; an action opens a cell, row by row."""

    @classmethod
    def actions(cls, params: Params) -> tuple[str, ...]:
        """ "row,column" of the cell that an action opens."""
        return tuple(f"{row},{col}" for row, col in np.ndindex(params.side, params.side))

    @classmethod
    def num_marks(cls, params: Params) -> int:
        """One for each cell."""
        return params.size

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
        """Put environment `index` at the start of a level."""
        (key,), side, occupied = self.level_keys, self.params.side, self.params.occupied
        cells = {check_cell(f"a cell of level[{key!r}]", cell) for cell in level[key]}
        if len(cells) != occupied or not all(0 <= value < side for cell in cells for value in cell):
            raise ValueError(f"level[{key!r}] is {level[key]!r}; expected {occupied} cells (row, col) in 0..{side - 1}")
        self.state.hidden[index] = 0
        for row, col in cells:
            self.state.hidden[index, row * side + col] = 1
        self.begin(index)
