"""Learning to execute: output the result of a short program (Zaremba and Sutskever 2014; Santoro et al. 2018, A.2), as
in the code released with the second paper (sonnet v1.36, examples/learn_to_execute.py)."""

from collections import Counter

from ...base.errors import check_choice, check_integer
from ..arrays import Array
from ..randomness import integer, streams
from .task import Batch, Task

OPERATIONS = {
    "addition": ("+",),
    "control": ("if", "for"),
    "program": ("+", "-", "*", "if", "for"),
    "algebra": ("+", "-", "*"),
    "algebra-control": ("+", "-", "if"),
}
PADDING, START, END = ".", "~", "!"
_KEYWORDS = ("if", "for", "else", "range")
_TOKENS = {*"0123456789", *"+-*=:/() x|<>[]", PADDING, START, END, *_KEYWORDS, *"".join(_KEYWORDS)}
VOCABULARY = ("_unk_", "_null_", "_eos_", "|", *sorted(_TOKENS - {"|"}))
_INDEX = {token: index for index, token in enumerate(VOCABULARY)}


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
