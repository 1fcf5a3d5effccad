"""Autoencode (POPGym): watch a pack of cards, then name their suits in reverse order."""

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..single import single
from .cards import DECK, SUITS, Params, State, class_of, deal, one_hot
from .game import SuitBatch


def _task(decks: int) -> Params:
    size = DECK * decks
    return Params(size, 2 * size - 1, 1 / size, -1 / size, divisor=SUITS.divisor, classes=SUITS.classes)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Deal or answer: (reward, whether it was the last answer, never truncated)."""
    step = state.step[i]
    state.step[i] += 1
    reward = 0.0
    if step >= params.size - 1:
        right = action == class_of(state, params, i, params.num_steps - 1 - step)
        reward = params.right if right else params.wrong
    return reward, step + 1 == params.num_steps, False


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    """Whether to watch, and the suit of the card dealt last: one-hots [2 + 4]."""
    step = state.step[i]
    one_hot(vector, 0, 2, 1 if step < params.size - 1 else 0)
    one_hot(vector, 2, params.classes, class_of(state, params, i, step) if step < params.size else 0)


class PopgymAutoencodeBatch(SuitBatch):
    """N games of Autoencode.

    Description:
        All cards of a pack are dealt, one in each step; then the actions should be their suits, the last card first.

    Actions: 0 spades, 1 diamonds, 2 clubs, 3 hearts; they mean nothing while cards are dealt.

    Observations: uint8 [6]: two values, the one-hot of 0 (answer) or 1 (watch), and four, the one-hot suit of the card
        dealt last. The last card of the pack is shown with "answer"; from the first answer on the suit is spades.

    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.

    Rewards: 1 / (52 D) for the right suit and minus as much for a wrong one, with D decks. At best 1, random play -0.5.

    Episode end: terminated by the last answer, after 104 D - 1 steps.
    """

    tasks = {"easy": _task(1), "medium": _task(2), "hard": _task(3)}  # noqa: RUF012
    loops = batch_loops(deal, advance, observe)

    @classmethod
    def groups(cls, params: Params) -> list[int]:
        return [2, params.classes]


PopgymAutoencode = single(PopgymAutoencodeBatch)
