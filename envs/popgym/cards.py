"""Six POPGym tasks with cards: Repeat First and Previous, Higher Lower, Autoencode, Count Recall, Concentration.

Card c of a pack of D decks is in 0..52 D - 1. Its rank is c // 4 mod 13, its suit c mod 4, and its color c mod 2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.compiled import kernel
from ...base.errors import check_numbers
from ..arrays import Array
from ..engine import batch_loops
from ..randomness import integer
from ..single import single
from .game import BACK, CLASS, NONE, PALETTE, SUIT_NAMES, Params, PopgymBatch, State, Task, clear, one_hot

DECK = 52  # Cards in a deck
PACK_WIDTH = 13  # Cards in a row of an image
COLORS = {"divisor": 1, "classes": 2}  # Kinds of classes, as fields of Params
SUITS = {"divisor": 1, "classes": 4}
RANKS = {"divisor": 4, "classes": 13}


def _task(size: int, num_steps: int, answers: int, kind: dict[str, int] = SUITS, lag: int = 1, **fields: Any) -> Task:
    """Return a task with a reward of 1 / answers for a correct action and -1 / answers for a wrong one."""
    return Task(Params(size, num_steps, 1 / answers, -1 / answers, **kind, lag=lag), **fields)


@kernel
def shuffle(state: State, i: int, first: int, size: int) -> None:
    """Put cards 0..size - 1 in random order into positions first.. of `hidden` (Fisher and Yates, inside out)."""
    for k in range(size):
        other = integer(state.random, i, k + 1)
        state.hidden[i, first + k] = state.hidden[i, first + other]
        state.hidden[i, first + other] = k


@kernel
def deal(state: State, params: Params, i: int) -> None:
    shuffle(state, i, 0, params.size)
    clear(state, params, i)


@kernel
def class_of(state: State, params: Params, i: int, position: int) -> int:
    return state.hidden[i, position] // params.divisor % params.classes


@kernel
def show_last(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the class of the card dealt last into `vector` [C], as a one-hot."""
    one_hot(vector, 0, params.classes, class_of(state, params, i, state.step[i]))


class CardBatch(PopgymBatch):
    """A task with packs of cards, whose level is the order of the cards; by default, an action names a suit."""

    level_keys = ("deck",)
    begin: Any = staticmethod(clear)  # Kernel (state, params, i): go to step 0 of the level in `hidden`
    symbols = tuple((PALETTE[CLASS + k], name) for k, name in enumerate(SUIT_NAMES))

    def table(self, index: int) -> Array:
        cards = self.state.hidden[index].astype(np.int64)
        return (CLASS + cards // self.params.divisor % self.params.classes).reshape(-1, PACK_WIDTH)

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: by key, the cards of a pack in the order in which they are dealt or lie."""
        packs = self.state.hidden[index].reshape(len(self.level_keys), -1)
        return dict(zip(self.level_keys, packs.tolist(), strict=True))

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        size = self.params.size // len(self.level_keys)
        packs = list[Array]()
        for key in self.level_keys:
            packs.append(check_numbers(f"level[{key!r}]", level[key], size, size))
            if len(np.unique(packs[-1])) < size:
                raise ValueError(f"level[{key!r}] has a card twice; expected each of 0..{size - 1} once")
        self.state.hidden[index] = np.concatenate(packs)
        self.begin(self.state, self.params, index)


@kernel
def advance_repeat_first(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    state.step[i] += 1
    right = action == class_of(state, params, i, 0)
    return params.right if right else params.wrong, state.step[i] == params.num_steps, False


class PopgymRepeatFirstBatch(CardBatch):
    """N games of Repeat First (POPGym): name the suit of the first card at every step.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.
    Observations: uint8 [4], the one-hot suit of the card dealt in this step, from D = 1, 8 or 16 shuffled decks.
    Rewards: 1 / (52 D - 1) for the correct suit, -1 / (52 D - 1) for a wrong one. At best 1, random play -0.5.
    Episode end: terminated when the last card is dealt, after 52 D - 1 steps.
    """

    tasks = tuple(_task(n, n - 1, n - 1) for n in (DECK, 8 * DECK, 16 * DECK))
    loops = batch_loops(deal, advance_repeat_first, show_last)


@kernel
def advance_repeat_previous(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    requested = state.step[i] + 1 - params.lag
    state.step[i] += 1
    reward = 0.0
    if requested >= 0:
        reward = params.right if action == class_of(state, params, i, requested) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymRepeatPreviousBatch(CardBatch):
    """N games of Repeat Previous (POPGym): name the suit of the card dealt k - 1 steps ago.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.
    Observations: uint8 [4], the one-hot suit of the card dealt in this step, from D = 1, 2 or 3 shuffled decks; k is 4,
        32 or 64.
    Rewards: 1 / (52 D - k) for the correct suit, -1 / (52 D - k) for a wrong one; 0 until k cards are dealt. At best 1,
        random play -0.5.
    Episode end: terminated when the last card is dealt, after 52 D - 1 steps.
    """

    tasks = tuple(_task(n, n - 1, n - k, lag=k) for n, k in ((DECK, 4), (2 * DECK, 32), (3 * DECK, 64)))
    loops = batch_loops(deal, advance_repeat_previous, show_last)


@kernel
def advance_higher_lower(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    before = class_of(state, params, i, state.step[i])
    state.step[i] += 1
    after = class_of(state, params, i, state.step[i])
    reward = 0.0
    if before != after:
        reward = params.right if (after > before) == (action == 0) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymHigherLowerBatch(CardBatch):
    """N games of Higher Lower (POPGym): guess whether the next card has a higher or a lower rank.

    Ranks go from ace (lowest) to king. Remembering the dealt cards improves the guesses.

    Actions: 0 higher, 1 lower than the visible card.
    Observations: uint8 [13], the one-hot rank of the card dealt in this step, from D = 1, 2 or 3 shuffled decks.
    Rewards: 1 / (52 D) for a correct guess, -1 / (52 D) for a wrong one, 0 if the ranks are equal. Random play 0;
        guessing from the visible card alone about 0.5.
    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = ((PALETTE[CLASS], "ace, the lowest"), (PALETTE[CLASS + 12], "king, the highest"))
    tasks = tuple(
        _task(n, n - 1, n, RANKS, actions=("higher", "lower"), groups=(13,)) for n in (DECK, 2 * DECK, 3 * DECK)
    )
    loops = batch_loops(deal, advance_higher_lower, show_last)


@kernel
def advance_autoencode(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    step = state.step[i]
    state.step[i] += 1
    reward = 0.0
    if step >= params.size - 1:
        right = action == class_of(state, params, i, params.num_steps - 1 - step)
        reward = params.right if right else params.wrong
    return reward, step + 1 == params.num_steps, False


@kernel
def observe_autoencode(state: State, params: Params, i: int, vector: Array) -> None:
    step = state.step[i]
    one_hot(vector, 0, 2, 1 if step < params.size - 1 else 0)
    one_hot(vector, 2, params.classes, class_of(state, params, i, step) if step < params.size else 0)


class PopgymAutoencodeBatch(CardBatch):
    """N games of Autoencode (POPGym): watch a pack of cards, then name their suits in reverse order.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts; they have no effect while cards are dealt, one per step.
    Observations: uint8 [6]: one-hot of 0 answer or 1 watch (2 values), one-hot suit of the card dealt last (4 values).
        The last card of the D = 1, 2 or 3 shuffled decks is shown with "answer"; after the first answer, the suit shown
        is always spades.
    Rewards: 1 / (52 D) for the correct suit, -1 / (52 D) for a wrong one. At best 1, random play -0.5.
    Episode end: terminated by the last answer, after 104 D - 1 steps.
    """

    tasks = tuple(_task(n, 2 * n - 1, n, groups=(2, 4)) for n in (DECK, 2 * DECK, 3 * DECK))
    loops = batch_loops(deal, advance_autoencode, observe_autoencode)


def _count_recall(decks: int, kind: dict[str, int]) -> Task:
    size, classes = DECK * decks, kind["classes"]
    counts = tuple(map(str, range(size // classes + 1)))
    return _task(2 * size, size - 1, size - 1, kind, actions=counts, groups=(classes, classes), num_marks=classes)


@kernel
def start_count_recall(state: State, params: Params, i: int) -> None:
    shuffle(state, i, 0, params.size // 2)
    shuffle(state, i, params.size // 2, params.size // 2)
    begin_count_recall(state, params, i)


@kernel
def begin_count_recall(state: State, params: Params, i: int) -> None:
    clear(state, params, i)
    state.marks[i, class_of(state, params, i, 0)] = 1


@kernel
def advance_count_recall(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    step = state.step[i]
    right = action == state.marks[i, class_of(state, params, i, params.size // 2 + step)]
    state.marks[i, class_of(state, params, i, step + 1)] += 1
    state.step[i] = step + 1
    return params.right if right else params.wrong, step + 1 == params.num_steps, False


@kernel
def observe_count_recall(state: State, params: Params, i: int, vector: Array) -> None:
    step, classes = state.step[i], params.classes
    one_hot(vector, 0, classes, class_of(state, params, i, step))
    one_hot(vector, classes, classes, class_of(state, params, i, params.size // 2 + step))


class PopgymCountRecallBatch(CardBatch):
    """N games of Count Recall (POPGym): report how often a class of cards has been dealt so far.

    In every step one card is dealt from each of two packs of D = 1, 2 or 4 shuffled decks: a value and a query. The
    action should be the number of values of the query's class dealt so far, including the visible one. Classes are 2
    colors, 4 suits or 13 ranks.

    Actions: the count, from 0 to the number of cards of a class: 26 (easy, medium) or 16 (hard).
    Observations: uint8 [4], [8] or [26]: the one-hot class of the value and of the query.
    Rewards: 1 / (52 D - 1) for the correct count, -1 / (52 D - 1) for a wrong one. At best 1, random play -0.93 (easy,
        medium) or -0.88.
    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = ((PALETTE[CLASS], "the first class"), (PALETTE[CLASS + 1], "the second class"))
    tasks = _count_recall(1, COLORS), _count_recall(2, SUITS), _count_recall(4, RANKS)
    level_keys = ("values", "queries")
    begin = staticmethod(begin_count_recall)
    loops = batch_loops(start_count_recall, advance_count_recall, observe_count_recall)


def _concentration(decks: int, kind: dict[str, int]) -> Task:
    size = DECK * decks
    steps = 2 * size  # ceil(2 n - n / (2 n - 1)): a perfect-memory player's mean number of steps, rounded up
    pairs = size // 2
    params = Params(size, steps, 1 / pairs, -1 / steps, **kind, targets=pairs)
    return Task(params, tuple(map(str, range(size))), (params.classes + 1,) * size, size)


@kernel
def begin_concentration(state: State, params: Params, i: int) -> None:
    clear(state, params, i)
    state.shown[i, 0], state.shown[i, 1] = NONE, NONE


@kernel
def start_concentration(state: State, params: Params, i: int) -> None:
    shuffle(state, i, 0, params.size)
    begin_concentration(state, params, i)


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

    An action turns up one card, and every second card ends a try: equal cards stay face up, others are turned down
    again after one observation. Turning up a card that is already face up also ends a try. Cards of the same color
    (easy, medium) or rank (hard) are equal.

    Actions: the position of a card, 0 to 52 D - 1, with D decks: 1 (easy, hard) or 2 (medium).
    Observations: uint8 [156], [312] or [728]: for each position the one-hot class of the card that is face up there;
        the last value of each one-hot means face down, as all cards are at the start.
    Rewards: 1 / (26 D) for a pair; -1 / T for each card of a failed try, with at most T steps. At best 1.
    Episode end: terminated when all cards are face up; truncated after T = 104 (easy, hard) or 208 (medium) steps.
    Differences from popgym: here, an episode that terminates in its last step is not also truncated.
    """

    symbols = ((PALETTE[BACK], "a card face down"), (PALETTE[CLASS], "a card of the first class"))
    tasks = _concentration(1, COLORS), _concentration(2, COLORS), _concentration(1, RANKS)
    begin = staticmethod(begin_concentration)
    loops = batch_loops(start_concentration, advance_concentration, observe_concentration)

    def seen(self, index: int) -> Array:
        values = self.observe_all()[index].reshape(self.params.size, -1).argmax(1)
        return np.where(values < self.params.classes, CLASS + values, BACK).reshape(-1, PACK_WIDTH)


PopgymRepeatFirst, PopgymRepeatPrevious = single(PopgymRepeatFirstBatch), single(PopgymRepeatPreviousBatch)
PopgymHigherLower, PopgymAutoencode = single(PopgymHigherLowerBatch), single(PopgymAutoencodeBatch)
PopgymCountRecall, PopgymConcentration = single(PopgymCountRecallBatch), single(PopgymConcentrationBatch)
