"""Repeat Previous (POPGym): name the suit of the card that was dealt k steps ago."""

from ...base.compiled import kernel
from ..loops import batch_loops
from ..single import single
from .cards import DECK, SUITS, Params, State, class_of, deal, show_last
from .game import SuitBatch


def _task(decks: int, lag: int) -> Params:
    size = DECK * decks
    share = 1 / (size - lag)
    return Params(size, size - 1, share, -share, divisor=SUITS.divisor, classes=SUITS.classes, lag=lag)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Answer and deal: (reward, whether it was the last answer, never truncated)."""
    requested = state.step[i] + 1 - params.lag
    state.step[i] += 1
    reward = 0.0
    if requested >= 0:
        reward = params.right if action == class_of(state, params, i, requested) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymRepeatPreviousBatch(SuitBatch):
    """N games of Repeat Previous.

    Description:
        A card is dealt in every step, and the action should be the suit of the card that was dealt k - 1 steps before
        the one visible: k is 4 (easy), 32 (medium) or 64 (hard).

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.

    Observations: uint8 [4], the one-hot suit of the card.

    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.

    Rewards: 1 / (52 D - k) for the right suit and minus as much for a wrong one, with D decks; 0 before k cards
        were dealt. At best 1, random play -0.5.

    Episode end: terminated when the last but one card was answered, after 52 D - 1 steps.
    """

    tasks = {"easy": _task(1, 4), "medium": _task(2, 32), "hard": _task(3, 64)}  # noqa: RUF012
    loops = batch_loops(deal, advance, show_last)


PopgymRepeatPrevious = single(PopgymRepeatPreviousBatch)
