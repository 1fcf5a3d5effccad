"""Concentration (POPGym): turn up pairs of equal cards on a table of face-down cards."""

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..single import single
from .cards import COLORS, DECK, NONE, RANKS, Kind, Params, State, class_of, clear, shuffle
from .game import BACK, CLASS, CardBatch, symbols_of


def _task(decks: int, kind: Kind) -> Params:
    size = DECK * decks
    steps = 2 * size  # ceil(2 n - n / (2 n - 1)): a perfect-memory player's mean number of steps, rounded up
    pairs = size // 2
    return Params(size, steps, 1 / pairs, -1 / steps, divisor=kind.divisor, classes=kind.classes, targets=pairs)


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: shuffle the cards."""
    shuffle(state, i, 0, params.size)
    begin(state, params, i)


@kernel
def begin(state: State, params: Params, i: int) -> None:
    """Go to step 0 of the level of environment i: all cards face down."""
    clear(state, params, i)
    state.shown[i, 0], state.shown[i, 1] = NONE, NONE


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Turn up a card; return (reward, whether all are face up, whether time has run out first)."""
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
def observe(state: State, params: Params, i: int, vector: Array) -> None:
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
    """N games of Concentration.

    Description:
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

    symbols = symbols_of((BACK, "a card face down"), (CLASS, "a card of the first class"))
    tasks = {"easy": _task(1, COLORS), "medium": _task(2, COLORS), "hard": _task(1, RANKS)}  # noqa: RUF012
    action_names = tuple(map(str, range(DECK)))
    loops = batch_loops(start, advance, observe)

    @classmethod
    def actions(cls, params: Params) -> tuple[str, ...]:
        return tuple(map(str, range(params.size)))

    @classmethod
    def groups(cls, params: Params) -> list[int]:
        return [params.classes + 1] * params.size

    @classmethod
    def num_marks(cls, params: Params) -> int:
        return params.size

    def seen(self, index: int) -> Array:
        """Return the table as colors [rows, 13]."""
        values = self.observe(index).reshape(self.params.size, -1).argmax(1)
        return np.where(values < self.params.classes, CLASS + values, BACK).reshape(-1, 13)

    def begin(self, index: int) -> None:
        """Go to step 0 of the level in `hidden` of environment `index`."""
        begin(self.state, self.params, index)


PopgymConcentration = single(PopgymConcentrationBatch)
