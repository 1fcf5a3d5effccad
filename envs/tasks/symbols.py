"""Symbols to copy or translate, programs to execute, and vectors to compare.

Sources: Santoro et al. 2018, appendix A.1 (n-th farthest) and A.2 (copy, reverse, double; programs, also Zaremba and
Sutskever 2014; numbers and programs are sampled as in the released code: sonnet v1.36, examples/learn_to_execute.py);
Munkhdalai et al. 2019 (double copy of 50 symbols, dictionary inference); Graves et al. 2014, section 4.5 (priority
sort).
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from ...base.compiled import kernel
from ...base.errors import check_choice, check_integer, low_high, refuse
from ..arrays import Array
from ..randomness import draw_order, integer, streams, uniform
from .task import Batch, Task

ORDERS = ("copy", "reverse", "double")
LETTERS = 26
SOURCES = LETTERS // 2
END, NEXT_EXAMPLE, END_OF_SUPPORT, PLACEHOLDER = range(LETTERS, LETTERS + 4)

OPERATIONS = {
    "addition": ("+",),
    "control": ("if", "for"),
    "program": ("+", "-", "*", "if", "for"),
    "algebra": ("+", "-", "*"),
    "algebra-control": ("+", "-", "if"),
}
PADDING = "."
_KEYWORDS = ("if", "for", "else", "range")
_TOKENS = {*"0123456789", *"+-*=:/() x|<>[]", PADDING, *"~!", *_KEYWORDS, *"".join(_KEYWORDS)}
VOCABULARY = ("_unk_", "_null_", "_eos_", "|", *sorted(_TOKENS - {"|"}))
_INDEX = {token: index for index, token in enumerate(VOCABULARY)}


@kernel
def copy(random: Array, low: int, high: int, symbols: int, number: bool, order: int, batch: Batch) -> None:
    """Fill inputs [T, B] and targets [T, B, 1]: sequences of low..high symbols, each ended by the symbol `symbols`."""
    inputs, targets, _ = batch
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
        order: "copy", "reverse" or "double".
        number: whether the first symbol is never 0, as in decimal numbers.
    """

    symbols = True

    def set_up(self, length: Any = (1, 5), num_symbols: int = 10, order: str = "copy", number: bool = True) -> None:
        check_integer("num_symbols", num_symbols, 2)
        check_choice("order", order, ORDERS)
        low, high = low_high("length", length, 1, None)
        self.classes, self.inputs, self.chance = num_symbols, num_symbols + 1, 1 / num_symbols
        self.steps = high + 1 + high * (2 if order == "double" else 1)
        self.fill = partial(copy, self.random, low, high, num_symbols, number, ORDERS.index(order))


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
def translate(random: Array, pairs: int, length: int, alphabet: Array, code: Array, batch: Batch) -> None:
    """Fill inputs [T, B] and targets [T, B, 1]; alphabet [26] and code [26] are scratch space. The first 13 letters of
    the shuffled alphabet are sources, the other 13 their translations."""
    inputs, targets, _ = batch
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
            if tries % 1000 == 0:  # a support with a single letter allows no new word
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

    In every sequence, a new random one-to-one code splits the 26 letters into 13 sources and 13 targets. The query is a
    new word of letters in the examples. Our choices where the paper is silent: a query's letters are sampled from the
    positions of the support (frequent letters more often); a query of one letter is one of the examples; only the
    answer, at the placeholders, counts in the loss.
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
        self.steps = num_pairs * (2 * length + 1) + 2 * length + 1
        self.fill = partial(translate, self.random, num_pairs, length, *np.zeros((2, LETTERS), np.int64))


@kernel
def rank(values: Array, t: int) -> int:
    """Number of values above values[t]; of equal ones (of measure zero), the earlier is above."""
    above = 0
    for other in range(len(values)):
        above += values[other] > values[t] or (values[other] == values[t] and other < t)
    return above


@kernel
def farthest(random: Array, features: int, labels: Array, distances: Array, batch: Batch) -> None:
    """Fill inputs [T, B, features + 3 T] and targets [T, B, 1]; labels and distances [T] are scratch space. A step
    shows a vector, its label, the label m of the reference and n, the last three as one-hots."""
    inputs, targets, _ = batch
    count = len(inputs)
    for i in range(inputs.shape[1]):
        for t in range(count):
            for f in range(features):
                inputs[t, i, f] = 2.0 * uniform(random, i) - 1.0
        draw_order(random, i, labels)
        n, reference = integer(random, i, count), integer(random, i, count)
        for t in range(count):
            inputs[t, i, features + labels[t]] = 1.0
            inputs[t, i, features + count + labels[reference]] = 1.0
            inputs[t, i, features + 2 * count + n] = 1.0
            distances[t] = 0.0
            for f in range(features):
                apart = inputs[t, i, f] - inputs[reference, i, f]
                distances[t] += apart * apart
        for t in range(count):
            if rank(distances, t) == n:
                targets[count - 1, i, 0] = labels[t]


class NthFarthest(Task):
    """`num_objects` vectors with labels in random order; the answer is the label of the n-th farthest from vector m.
    n = 0 queries the farthest vector and n = num_objects - 1 queries m itself, as in the paper; its code reverses n."""

    def set_up(self, num_objects: int = 8, num_features: int = 16) -> None:
        check_integer("num_objects", num_objects, 2)
        check_integer("num_features", num_features, 1)
        self.steps = self.classes = num_objects
        self.inputs = num_features + 3 * num_objects
        # The last step shows n and m: for the last n the answer is m, for every other n one of the other labels.
        self.chance = 2 / num_objects
        labels, distances = np.zeros(num_objects, np.int64), np.zeros(num_objects)
        self.fill = partial(farthest, self.random, num_features, labels, distances)


@kernel
def sort(random: Array, outputs: int, bits: int, priority: Array, batch: Batch) -> None:
    """Fill inputs [items + outputs, B, bits + 2] and targets [.., B, bits]; priority [items] is scratch space."""
    inputs, targets, _ = batch
    items = len(priority)
    for i in range(inputs.shape[1]):
        for t in range(items):
            for bit in range(bits):
                inputs[t, i, bit] = integer(random, i, 2)
            priority[t] = 2.0 * uniform(random, i) - 1.0
            inputs[t, i, bits] = priority[t]
        for t in range(items):
            higher = rank(priority, t)
            if higher < outputs:
                for bit in range(bits):
                    targets[items + higher, i, bit] = np.int64(inputs[t, i, bit])
        for t in range(outputs):
            inputs[items + t, i, bits + 1] = 1.0


class PrioritySort(Task):
    """`num_items` random binary vectors with priorities in (-1, 1), then queries, with a flag, of the `num_outputs`
    highest ones, the highest first; each bit is one of two classes."""

    classes = 2
    chance = 0.5

    def set_up(self, num_items: int = 20, num_outputs: int = 16, num_bits: int = 8) -> None:
        check_integer("num_items", num_items, 1)
        check_integer("num_outputs", num_outputs, 1, num_items)
        check_integer("num_bits", num_bits, 1)
        self.steps, self.inputs, self.groups = num_items + num_outputs, num_bits + 2, num_bits
        self.fill = partial(sort, self.random, num_outputs, num_bits, np.zeros(num_items))


def literal(random: Array, i: int, length: int) -> int:
    """Sample a number with exactly `length` digits, uniformly."""
    low = 10 ** (length - 1)
    return low + integer(random, i, 10**length - low)


def apply(operation: str, random: Array, i: int, value: int, code: str, length: int) -> tuple[int, str]:
    """Apply an operation to the value of `code` and to sampled literals; return the value and code of the result."""
    other = literal(random, i, length)
    if operation == "for":
        times = 1 + integer(random, i, 9)
        return value + times * other, f"x={code}for[{times}]x+={other}"
    if operation == "if":
        right, otherwise = literal(random, i, length), literal(random, i, length)
        compare = "<>"[integer(random, i, 2)]
        holds = other < right if compare == "<" else other > right
        return value if holds else otherwise, f"{code}if{other}{compare}{right}else{otherwise}"
    return {"+": value + other, "-": value - other, "*": value * other}[operation], f"{code}{operation}{other}"


def program(random: Array, i: int, operations: tuple[str, ...], length: int, nesting: int) -> tuple[str, str]:
    """Sample a program of nested operations; return its code and its value modulo 10^(length + 1), both as text."""
    value = literal(random, i, length)
    code = str(value)
    for depth in range(nesting):
        operation = operations[integer(random, i, len(operations))]
        value, code = apply(operation, random, i, value, f"({code})" if depth else code, length)
    return code, str(value % 10 ** (length + 1))


class Execute(Task):
    """A program, character by character, padded; then blank steps at which the digits of its value are queried.

    Only the value's digits are queried, the most significant first, but not the padding after them. In the paper, the
    value is modulo 10^length; in its released code and here, it is modulo 10^(length + 1).

    Args:
        operations: "addition", "control", "program", "algebra" or "algebra-control".
        length, nesting: digits of a literal, 1 to 9, and operations of a program.
        mix: whether length and nesting are sampled uniformly from 1 up to these values for every program (the paper's
            curriculum); otherwise every program has the highest difficulty.
    """

    symbols = True
    inputs = len(VOCABULARY)
    classes = 10

    def set_up(self, operations: str = "addition", length: int = 5, nesting: int = 2, mix: bool = True) -> None:
        check_choice("operations", operations, tuple(OPERATIONS))
        check_integer("length", length, 1, 9)
        check_integer("nesting", nesting, 1)
        self.operations, self.length, self.nesting, self.mix = OPERATIONS[operations], length, nesting, mix
        self.steps_in = (3 * length + 12) * (nesting - 1) + 4 * length + 10
        self.steps = self.steps_in + 2 * length
        random = streams(0, range(1))
        digits = Counter(digit for _ in range(2000) for digit in self._program(random, 0)[1])
        self.chance = max(digits.values()) / digits.total()  # the most common digit; sums often begin with 1

    def _program(self, random: Array, i: int) -> tuple[str, str]:
        length, nesting = self.length, self.nesting
        if self.mix:
            length, nesting = 1 + integer(random, i, length), 1 + integer(random, i, nesting)
        return program(random, i, self.operations, length, nesting)

    def fill(self, batch: Batch) -> None:
        for i in range(self.num_sequences):
            code, value = self._program(self.random, i)
            batch.inputs[: self.steps_in, i] = [_INDEX[c] for c in code.ljust(self.steps_in, PADDING)]
            batch.targets[self.steps_in : self.steps_in + len(value), i, 0] = [int(digit) for digit in value]
