"""Higher Lower (POPGym): guess whether the next card is higher, knowing which cards are gone."""

from ...base.compiled import kernel
from ..loops import batch_loops
from ..single import single
from .cards import DECK, RANKS, Params, State, class_of, deal, show_last
from .game import CLASS, CardBatch, symbols_of


def _task(decks: int) -> Params:
    size = DECK * decks
    return Params(size, size - 1, 1 / size, -1 / size, divisor=RANKS.divisor, classes=RANKS.classes)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Guess and deal: (reward, whether no card is left, never truncated)."""
    before = class_of(state, params, i, state.step[i])
    state.step[i] += 1
    after = class_of(state, params, i, state.step[i])
    reward = 0.0
    if before != after:
        reward = params.right if (after > before) == (action == 0) else params.wrong
    return reward, state.step[i] == params.num_steps, False


class PopgymHigherLowerBatch(CardBatch):
    """N games of Higher Lower.

    Description:
        A card is visible; the action guesses whether the next one has a higher or a lower rank, from ace (lowest) to
        king. Who remembers the cards that are gone guesses better.

    Actions: 0 higher, 1 lower.

    Observations: uint8 [13], the one-hot rank of the card.

    Start: a shuffled pack of 1 (easy), 2 (medium) or 3 (hard) decks, its first card dealt.

    Rewards: 1 / (52 D) for a right guess and minus as much for a wrong one, with D decks; 0 if the ranks are equal.
        Random play 0; guessing by the card visible alone about 0.5.

    Episode end: terminated when no card is left, after 52 D - 1 steps.
    """

    symbols = symbols_of((CLASS, "ace, the lowest"), (CLASS + RANKS.classes - 1, "king, the highest"))
    tasks = {"easy": _task(1), "medium": _task(2), "hard": _task(3)}  # noqa: RUF012
    action_names = ("higher", "lower")
    loops = batch_loops(deal, advance, show_last)


PopgymHigherLower = single(PopgymHigherLowerBatch)
