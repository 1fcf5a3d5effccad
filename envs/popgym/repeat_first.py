"""Repeat First (POPGym): name the suit of the first card, for a whole pack of cards."""

from ...base.compiled import kernel
from ..loops import batch_loops
from ..single import single
from .cards import DECK, SUITS, Params, State, class_of, deal, show_last
from .game import SuitBatch


def _task(decks: int) -> Params:
    steps = DECK * decks - 1
    return Params(DECK * decks, steps, 1 / steps, -1 / steps, divisor=SUITS.divisor, classes=SUITS.classes)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Answer and deal: (reward, whether it was the last answer, never truncated)."""
    state.step[i] += 1
    right = action == class_of(state, params, i, 0)
    return params.right if right else params.wrong, state.step[i] == params.num_steps, False


class PopgymRepeatFirstBatch(SuitBatch):
    """N games of Repeat First.

    Description:
        A card is dealt in every step, and the action should always be the suit of the first one.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts.

    Observations: uint8 [4], the one-hot suit of the card.

    Start: a shuffled pack of 1 (easy), 8 (medium) or 16 (hard) decks, its first card dealt.

    Rewards: 1 / (52 D - 1) for the right suit and minus as much for a wrong one, with D decks. At best 1, random play
        -0.5.

    Episode end: terminated when the last but one card was answered, after 52 D - 1 steps.
    """

    tasks = {"easy": _task(1), "medium": _task(8), "hard": _task(16)}  # noqa: RUF012
    loops = batch_loops(deal, advance, show_last)


PopgymRepeatFirst = single(PopgymRepeatFirstBatch)
