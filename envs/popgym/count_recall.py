"""Count Recall (POPGym): report how often a class of cards has been dealt so far."""

from collections.abc import Mapping
from typing import Any

from ...base.compiled import kernel
from ..arrays import Array
from ..loops import batch_loops
from ..single import single
from .cards import COLORS, DECK, RANKS, SUITS, Kind, Params, State, class_of, clear, one_hot, shuffle
from .game import CLASS, PopgymBatch, symbols_of


def _task(decks: int, kind: Kind) -> Params:
    steps = DECK * decks - 1
    return Params(2 * DECK * decks, steps, 1 / steps, -1 / steps, divisor=kind.divisor, classes=kind.classes)


@kernel
def start(state: State, params: Params, i: int) -> None:
    """Begin a new episode in environment i: shuffle the values, then the queries."""
    shuffle(state, i, 0, params.size // 2)
    shuffle(state, i, params.size // 2, params.size // 2)
    begin(state, params, i)


@kernel
def begin(state: State, params: Params, i: int) -> None:
    """Go to step 0 of the level of environment i, and count its first value."""
    clear(state, params, i)
    state.marks[i, class_of(state, params, i, 0)] = 1


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    """Evaluate the answer and deal; return (reward, whether no card is left, False)."""
    step = state.step[i]
    right = action == state.marks[i, class_of(state, params, i, params.size // 2 + step)]
    state.marks[i, class_of(state, params, i, step + 1)] += 1
    state.step[i] = step + 1
    return params.right if right else params.wrong, step + 1 == params.num_steps, False


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    """Write the classes of value and query, as two one-hots."""
    step, classes = state.step[i], params.classes
    one_hot(vector, 0, classes, class_of(state, params, i, step))
    one_hot(vector, classes, classes, class_of(state, params, i, params.size // 2 + step))


class PopgymCountRecallBatch(PopgymBatch):
    """N games of Count Recall.

    Description:
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

    symbols = symbols_of((CLASS, "the first class"), (CLASS + 1, "the second class"))
    tasks = {"easy": _task(1, COLORS), "medium": _task(2, SUITS), "hard": _task(4, RANKS)}  # noqa: RUF012
    action_names = tuple(map(str, range(27)))
    level_keys = ("values", "queries")
    loops = batch_loops(start, advance, observe)

    @classmethod
    def actions(cls, params: Params) -> tuple[str, ...]:
        return tuple(map(str, range(params.size // 2 // params.classes + 1)))

    @classmethod
    def groups(cls, params: Params) -> list[int]:
        return [params.classes, params.classes]

    @classmethod
    def num_marks(cls, params: Params) -> int:
        return params.classes

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"values": [...], "queries": [...]}`, cards in the order of dealing."""
        values, queries = self.state.hidden[index].reshape(2, -1).tolist()
        return {"values": values, "queries": queries}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        half = self.params.size // 2
        self.put_deck(index, level, "values", 0, half)
        self.put_deck(index, level, "queries", half, half)
        begin(self.state, self.params, index)


PopgymCountRecall = single(PopgymCountRecallBatch)
