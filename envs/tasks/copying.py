"""Repeat the input: copy, reverse or double digits, and copy long sequences.

Sources: Santoro et al. 2018, appendix A.2 (copy, reverse, double; the sampling of numbers as in the released
learn_to_execute.py); Munkhdalai et al. 2019 (double copy of 50 symbols).
"""

from typing import Any

from ...base.compiled import kernel
from ...base.messages import check_choice, check_flag, check_integer, low_high
from ..arrays import Array
from ..randomness import integer
from .task import Batch, Task

ORDERS = ("copy", "reverse", "double")


@kernel
def fill(
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

    def __init__(
        self,
        num_sequences: int,
        *,
        length: Any = (1, 5),
        num_symbols: int = 10,
        order: str = "copy",
        number: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(num_sequences, **common)
        check_integer("num_symbols", num_symbols, 2)
        check_choice("order", order, ORDERS)
        check_flag("number", number)
        self.low, self.high = low_high("length", length, 1, None)
        self.order, self.number = ORDERS.index(order), number
        self.classes, self.inputs = num_symbols, num_symbols + 1
        self.steps = self.high + 1 + self.high * (2 if order == "double" else 1)
        self.chance = 1 / num_symbols

    def _fill(self, batch: Batch) -> None:
        fill(self.random, self.low, self.high, self.classes, self.number, self.order, batch.inputs, batch.targets)
