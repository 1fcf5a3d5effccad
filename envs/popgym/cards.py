"""Five POPGym tasks in which cards are dealt: Repeat First and Previous, Higher Lower, Autoencode, Count Recall."""

from collections.abc import Mapping
from typing import Any

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..single import single
from .game import (
    CLASS,
    COLORS,
    DECK,
    PALETTE,
    RANKS,
    SUITS,
    CardBatch,
    Params,
    PopgymBatch,
    State,
    Task,
    class_of,
    clear,
    deal,
    one_hot,
    show_last,
    shuffle,
)


def _repeat_first(decks: int) -> Task:
    steps = DECK * decks - 1
    return Task(Params(DECK * decks, steps, 1 / steps, -1 / steps, **SUITS))


@kernel
def advance_repeat_first(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    state.step[i] += 1
    right = action == class_of(state, params, i, 0)
    return params.right if right else params.wrong, state.step[i] == params.num_steps, False


class PopgymRepeatFirstBatch(CardBatch):
    """N games of Repeat First (POPGym): name the suit of the first card at every step.

    A card is dealt at every step, and the action should always be the suit of the first card.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.
    Observations: uint8 [4], the one-hot suit of the card.
    Start: a shuffled pack of 1 (easy), 8 (medium) or 16 (hard) decks, its first card dealt.
    Rewards: 1 / (52 D - 1) for the correct suit, -1 / (52 D - 1) for a wrong one, with D decks. At best 1, random play
        -0.5.
    Episode end: terminated when the last card is dealt, after 52 D - 1 steps.
    """

    tasks = {"easy": _repeat_first(1), "medium": _repeat_first(8), "hard": _repeat_first(16)}  # noqa: RUF012
    loops = batch_loops(deal, advance_repeat_first, show_last)


PopgymRepeatFirst = single(PopgymRepeatFirstBatch)


def _repeat_previous(decks: int, lag: int) -> Task:
    size = DECK * decks
    return Task(Params(size, size - 1, 1 / (size - lag), -1 / (size - lag), **SUITS, lag=lag))


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

    A card is dealt at every step, and the action should be the suit of the card dealt k - 1 steps before the
    visible one: k is 4 (easy), 32 (medium) or 64 (hard).

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.
    Observations: uint8 [4], the one-hot suit of the card.
    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.
    Rewards: 1 / (52 D - k) for the correct suit, -1 / (52 D - k) for a wrong one, with D decks; 0 until k cards
        are dealt. At best 1, random play -0.5.
    Episode end: terminated when the last card is dealt, after 52 D - 1 steps.
    """

    tasks = {"easy": _repeat_previous(1, 4), "medium": _repeat_previous(2, 32), "hard": _repeat_previous(3, 64)}  # noqa: RUF012
    loops = batch_loops(deal, advance_repeat_previous, show_last)


PopgymRepeatPrevious = single(PopgymRepeatPreviousBatch)


def _higher_lower(decks: int) -> Task:
    size = DECK * decks
    return Task(Params(size, size - 1, 1 / size, -1 / size, **RANKS), ("higher", "lower"), (13,))


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

    A card is visible; the action guesses whether the next one has a higher or a lower rank, from ace (lowest) to
    king. Remembering the dealt cards improves the guesses.

    Actions: 0 higher, 1 lower.
    Observations: uint8 [13], the one-hot rank of the card.
    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.
    Rewards: 1 / (52 D) for a correct guess, -1 / (52 D) for a wrong one, with D decks; 0 if the ranks are equal.
        Random play 0; guessing from the visible card alone about 0.5.
    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = ((PALETTE[CLASS], "ace, the lowest"), (PALETTE[CLASS + 12], "king, the highest"))
    tasks = {"easy": _higher_lower(1), "medium": _higher_lower(2), "hard": _higher_lower(3)}  # noqa: RUF012
    loops = batch_loops(deal, advance_higher_lower, show_last)


PopgymHigherLower = single(PopgymHigherLowerBatch)


def _autoencode(decks: int) -> Task:
    size = DECK * decks
    return Task(Params(size, 2 * size - 1, 1 / size, -1 / size, **SUITS), groups=(2, 4))


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

    All cards of a pack are dealt, one per step; then the actions should be their suits, in reverse order.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts; they have no effect while cards are dealt.
    Observations: uint8 [6]: one-hot of 0 answer or 1 watch (2 values), one-hot suit of the card dealt last (4 values).
        The last card of the pack is shown with "answer"; after the first answer, the suit shown is always spades.
    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.
    Rewards: 1 / (52 D) for the correct suit, -1 / (52 D) for a wrong one, with D decks. At best 1, random play
        -0.5.
    Episode end: terminated by the last answer, after 104 D - 1 steps.
    """

    tasks = {"easy": _autoencode(1), "medium": _autoencode(2), "hard": _autoencode(3)}  # noqa: RUF012
    loops = batch_loops(deal, advance_autoencode, observe_autoencode)


PopgymAutoencode = single(PopgymAutoencodeBatch)


def _count_recall(decks: int, kind: dict[str, int]) -> Task:
    size, classes = DECK * decks, kind["classes"]
    counts = tuple(map(str, range(size // classes + 1)))
    return Task(
        Params(2 * size, size - 1, 1 / (size - 1), -1 / (size - 1), **kind), counts, (classes, classes), classes
    )


@kernel
def start_count_recall(state: State, params: Params, i: int) -> None:
    shuffle(state, i, 0, params.size // 2)
    shuffle(state, i, params.size // 2, params.size // 2)
    begin_count_recall(state, params, i)


@kernel
def begin_count_recall(state: State, params: Params, i: int) -> None:
    """Go to step 0 of the level of environment i, and count its first value."""
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


class PopgymCountRecallBatch(PopgymBatch):
    """N games of Count Recall (POPGym): report how often a class of cards has been dealt so far.

    In every step one card is dealt from each of two packs: a value and a query. The action should be the number of
    values of the query's class dealt so far, including the visible one.
    Classes are 2 colors (easy), 4 suits (medium) or 13 ranks (hard).

    Actions: the count, from 0 to the number of cards of a class: 26 (easy, medium) or 16 (hard).
    Observations: uint8 [4] (easy), [8] (medium) or [26] (hard): the one-hot class of the value and of the query.
    Start: two shuffled packs of 1 (easy), 2 (medium) or 4 (hard) decks, the first card of each dealt.
    Rewards: 1 / (52 D - 1) for the correct count, -1 / (52 D - 1) for a wrong one, with D decks. At best 1, random
        play -0.93 (easy, medium) or -0.88.
    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = ((PALETTE[CLASS], "the first class"), (PALETTE[CLASS + 1], "the second class"))
    tasks = {"easy": _count_recall(1, COLORS), "medium": _count_recall(2, SUITS), "hard": _count_recall(4, RANKS)}  # noqa: RUF012
    level_keys = ("values", "queries")
    loops = batch_loops(start_count_recall, advance_count_recall, observe_count_recall)

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"values": [...], "queries": [...]}`, cards in the order of dealing."""
        values, queries = self.state.hidden[index].reshape(2, -1).tolist()
        return {"values": values, "queries": queries}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        half = self.params.size // 2
        self.put_deck(index, level, "values", 0, half)
        self.put_deck(index, level, "queries", half, half)
        begin_count_recall(self.state, self.params, index)


PopgymCountRecall = single(PopgymCountRecallBatch)
