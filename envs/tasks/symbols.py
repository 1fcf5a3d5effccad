"""Symbols to output again: copied, reversed or doubled, or translated by a code that only examples reveal.

Sources: Santoro et al. 2018, appendix A.2 (copy, reverse, double; the sampling of numbers as in the released
learn_to_execute.py); Munkhdalai et al. 2019 (double copy of 50 symbols, dictionary inference).
"""

from typing import Any

import numpy as np

from ...base.compiled import kernel
from ...base.errors import refuse
from ...base.messages import check_choice, check_integer, low_high
from ..arrays import Array
from ..randomness import integer
from .task import Batch, Task
from .vectors import draw_order

ORDERS = ("copy", "reverse", "double")
LETTERS = 26
SOURCES = LETTERS // 2
TRIES = 1000  # Queries sampled before the support's first letter is resampled
END, NEXT_EXAMPLE, END_OF_SUPPORT, PLACEHOLDER = range(LETTERS, LETTERS + 4)


@kernel
def copy(
    random: Array, low: int, high: int, symbols: int, number: bool, order: int, inputs: Array, targets: Array
) -> None:
    """Fill inputs [T, B] and targets [T, B, 1]: sequences of low..high symbols, each ended by the symbol `symbols`."""
    for i in range(inputs.shape[1]):
        length = low + integer(random, i, high - low + 1)
        for t in range(high + 1):
            if t >= length:
                inputs[t, i] = symbols
            elif t == 0 and number:
                inputs[t, i] = 1 + integer(random, i, symbols - 1)
            else:
                inputs[t, i] = integer(random, i, symbols)
        for t in range(2 * length if order == 2 else length):
            position = length - 1 - t if order == 1 else t % length
            targets[high + 1 + t, i, 0] = inputs[position, i]


class Copying(Task):
    """A sequence followed by an end symbol, then queried at blank steps: in order, backward or twice.

    Args:
        length: length of a sequence: an integer, or (smallest, largest), sampled uniformly for each sequence.
        num_symbols: number of symbols.
        order: "copy", "reverse" or "double".
        number: whether the first symbol is never 0, as in decimal numbers.
    """

    symbols = True

    def set_up(self, length: Any = (1, 5), num_symbols: int = 10, order: str = "copy", number: bool = True) -> None:
        check_integer("num_symbols", num_symbols, 2)
        check_choice("order", order, ORDERS)
        self.low, self.high = low_high("length", length, 1, None)
        self.order, self.number = ORDERS.index(order), number
        self.classes, self.inputs = num_symbols, num_symbols + 1
        self.steps = self.high + 1 + self.high * (2 if order == "double" else 1)
        self.chance = 1 / num_symbols

    def _fill(self, batch: Batch) -> None:
        copy(self.random, self.low, self.high, self.classes, self.number, self.order, batch.inputs, batch.targets)


@kernel
def is_new(inputs: Array, i: int, pairs: int, length: int, first: int) -> bool:
    """Whether the word at step `first` differs from all source words of the support."""
    for pair in range(pairs):
        same = True
        for k in range(length):
            same = same and inputs[pair * (2 * length + 1) + k, i] == inputs[first + k, i]
        if same:
            return False
    return True


@kernel
def translate(
    random: Array, pairs: int, length: int, inputs: Array, targets: Array, alphabet: Array, code: Array
) -> None:
    """Fill inputs [T, B] and targets [T, B, 1]; alphabet [26] and code [26] are scratch space. The first 13 letters of
    the shuffled alphabet are sources, the other 13 their translations."""
    for i in range(inputs.shape[1]):
        draw_order(random, i, alphabet)
        for k in range(SOURCES):
            code[alphabet[k]] = alphabet[SOURCES + k]
        t = 0
        for pair in range(pairs):
            for k in range(length):
                inputs[t + k, i] = alphabet[integer(random, i, SOURCES)]
                inputs[t + length + k, i] = code[inputs[t + k, i]]
            inputs[t + 2 * length, i] = NEXT_EXAMPLE if pair + 1 < pairs else END_OF_SUPPORT
            t += 2 * length + 1
        fresh, tries = False, 0
        while not fresh:
            tries += 1
            if tries % TRIES == 0:  # a support with a single letter allows no new word
                inputs[0, i] = alphabet[integer(random, i, SOURCES)]
                inputs[length, i] = code[inputs[0, i]]
            for k in range(length):
                # The letter at a random source position of the support, so that its translation is known.
                source = integer(random, i, pairs) * (2 * length + 1) + integer(random, i, length)
                inputs[t + k, i] = inputs[source, i]
            fresh = length == 1 or is_new(inputs, i, pairs, length, t)
        inputs[t + length, i] = END
        for k in range(length):
            inputs[t + length + 1 + k, i] = PLACEHOLDER
            targets[t + length + 1 + k, i, 0] = code[inputs[t + k, i]]


class Dictionary(Task):
    """`num_pairs` words of `length` letters with their translations, then a word to translate at placeholders.

    In every sequence, a new random one-to-one code splits the 26 letters into 13 sources and 13 targets. The
    query is a new word of letters that occur in the examples.

    Our choices where the paper leaves them open: a query's letters are sampled from the positions of the support
    (frequent letters more often); a query of one letter is one of the examples; only the answer, at the placeholders,
    counts in the loss.
    """

    symbols = True
    inputs = LETTERS + 4
    classes = LETTERS
    chance = 1 / LETTERS  # even the set of answer letters must be remembered

    def set_up(self, num_pairs: int = 8, length: int = 4) -> None:
        check_integer("num_pairs", num_pairs, 1)
        check_integer("length", length, 1)
        text = f"num_pairs is {num_pairs} for length {length}; allowed: at least 2, so that there is a new word"
        refuse(num_pairs < 2 and length > 1, text)
        self.pairs, self.length = num_pairs, length
        self.steps = num_pairs * (2 * length + 1) + 2 * length + 1

    def _fill(self, batch: Batch) -> None:
        scratch = np.zeros((2, LETTERS), np.int64)
        translate(self.random, self.pairs, self.length, batch.inputs, batch.targets, *scratch)
