"""Four POPGym tasks with one pack of cards: Repeat First, Repeat Previous, Higher Lower and Autoencode."""

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..single import single
from .cards import DECK, RANKS, SUITS, Params, State, class_of, deal, one_hot, show_last
from .game import CLASS, CardBatch, SuitBatch, symbols_of


def _repeat_first(decks: int) -> Params:
    steps = DECK * decks - 1
    return Params(DECK * decks, steps, 1 / steps, -1 / steps, divisor=SUITS.divisor, classes=SUITS.classes)


@kernel
def advance_repeat_first(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Evaluate the answer and deal; return (reward, whether it was the last answer, False)."""
    state.step[i] += 1
    right = action == class_of(state, params, i, 0)
    return params.right if right else params.wrong, state.step[i] == params.num_steps, False


class PopgymRepeatFirstBatch(SuitBatch):
    """N games of Repeat First (POPGym): name the suit of the first card at every step.

    Description:
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


def _repeat_previous(decks: int, lag: int) -> Params:
    size = DECK * decks
    share = 1 / (size - lag)
    return Params(size, size - 1, share, -share, divisor=SUITS.divisor, classes=SUITS.classes, lag=lag)


@kernel
def advance_repeat_previous(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Evaluate the answer and deal; return (reward, whether it was the last answer, False)."""
    requested = state.step[i] + 1 - params.lag
    state.step[i] += 1
    reward = 0.0
    if requested >= 0:
        reward = params.right if action == class_of(state, params, i, requested) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymRepeatPreviousBatch(SuitBatch):
    """N games of Repeat Previous (POPGym): name the suit of the card dealt k - 1 steps ago.

    Description:
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


def _higher_lower(decks: int) -> Params:
    size = DECK * decks
    return Params(size, size - 1, 1 / size, -1 / size, divisor=RANKS.divisor, classes=RANKS.classes)


@kernel
def advance_higher_lower(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Evaluate the guess and deal; return (reward, whether no card is left, False)."""
    before = class_of(state, params, i, state.step[i])
    state.step[i] += 1
    after = class_of(state, params, i, state.step[i])
    reward = 0.0
    if before != after:
        reward = params.right if (after > before) == (action == 0) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymHigherLowerBatch(CardBatch):
    """N games of Higher Lower (POPGym): guess whether the next card has a higher or a lower rank.

    Description:
        A card is visible; the action guesses whether the next one has a higher or a lower rank, from ace (lowest) to
        king. Remembering the dealt cards improves the guesses.

    Actions: 0 higher, 1 lower.

    Observations: uint8 [13], the one-hot rank of the card.

    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.

    Rewards: 1 / (52 D) for a correct guess, -1 / (52 D) for a wrong one, with D decks; 0 if the ranks are equal.
        Random play 0; guessing from the visible card alone about 0.5.

    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = symbols_of((CLASS, "ace, the lowest"), (CLASS + RANKS.classes - 1, "king, the highest"))
    tasks = {"easy": _higher_lower(1), "medium": _higher_lower(2), "hard": _higher_lower(3)}  # noqa: RUF012
    action_names = ("higher", "lower")
    loops = batch_loops(deal, advance_higher_lower, show_last)


PopgymHigherLower = single(PopgymHigherLowerBatch)


def _autoencode(decks: int) -> Params:
    size = DECK * decks
    return Params(size, 2 * size - 1, 1 / size, -1 / size, divisor=SUITS.divisor, classes=SUITS.classes)


@kernel
def advance_autoencode(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Deal, or evaluate the answer; return (reward, whether it was the last answer, False)."""
    step = state.step[i]
    state.step[i] += 1
    reward = 0.0
    if step >= params.size - 1:
        right = action == class_of(state, params, i, params.num_steps - 1 - step)
        reward = params.right if right else params.wrong
    return reward, step + 1 == params.num_steps, False


@kernel
def observe_autoencode(state: State, params: Params, i: int, vector: Array) -> None:
    """Write whether to watch, and the suit of the card dealt last, as one-hots [2 + 4]."""
    step = state.step[i]
    one_hot(vector, 0, 2, 1 if step < params.size - 1 else 0)
    one_hot(vector, 2, params.classes, class_of(state, params, i, step) if step < params.size else 0)


class PopgymAutoencodeBatch(SuitBatch):
    """N games of Autoencode (POPGym): watch a pack of cards, then name their suits in reverse order.

    Description:
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

    @classmethod
    def groups(cls, params: Params) -> list[int]:
        return [2, params.classes]


PopgymAutoencode = single(PopgymAutoencodeBatch)
