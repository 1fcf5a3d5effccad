"""Priority sort: output the vectors of highest priority, in order (Graves et al. 2014, section 4.5)."""

from typing import Any

import numpy as np

from ...base.compiled import kernel
from ...base.messages import check_integer
from ..arrays import Array
from ..randomness import integer, uniform
from .task import Batch, Task


@kernel
def fill(random: Array, items: int, outputs: int, bits: int, inputs: Array, targets: Array, priority: Array) -> None:
    """Fill inputs [items + outputs, B, bits + 2] and targets [.., B, bits]; priority [items] is scratch space."""
    for i in range(inputs.shape[1]):
        for t in range(items):
            for bit in range(bits):
                inputs[t, i, bit] = integer(random, i, 2)
            priority[t] = 2.0 * uniform(random, i) - 1.0
            inputs[t, i, bits] = priority[t]
        for t in range(items):
            higher = 0
            for other in range(items):
                if priority[other] > priority[t] or (priority[other] == priority[t] and other < t):
                    higher += 1
            if higher < outputs:
                for bit in range(bits):
                    targets[items + higher, i, bit] = np.int64(inputs[t, i, bit])
        for t in range(outputs):
            inputs[items + t, i, bits + 1] = 1.0


class PrioritySort(Task):
    """`num_items` random binary vectors with priorities in (-1, 1), then queries of the `num_outputs` highest ones.

    Queries begin with the highest priority and show a separate flag; each bit is one of two classes.
    """

    classes = 2
    chance = 0.5

    def __init__(
        self, num_sequences: int, *, num_items: int = 20, num_outputs: int = 16, num_bits: int = 8, **common: Any
    ) -> None:
        super().__init__(num_sequences, **common)
        check_integer("num_items", num_items, 1)
        check_integer("num_outputs", num_outputs, 1, num_items)
        check_integer("num_bits", num_bits, 1)
        self.items, self.outputs, self.groups = num_items, num_outputs, num_bits
        self.steps, self.inputs = num_items + num_outputs, num_bits + 2
        self._priority = np.zeros(num_items, np.float64)

    def _fill(self, batch: Batch) -> None:
        fill(self.random, self.items, self.outputs, self.groups, batch.inputs, batch.targets, self._priority)
