"""Nth farthest: which of eight vectors is the n-th farthest from vector m? (Santoro et al. 2018, appendix A.1)."""

from typing import Any

import numpy as np

from ...base.compiled import kernel
from ...base.messages import check_integer
from ..arrays import Array
from ..randomness import integer, uniform
from .task import Batch, Task


@kernel
def draw_order(random: Array, i: int, order: Array) -> None:
    """Write a random order of 0 .. len(order) - 1 into `order` (Fisher and Yates)."""
    for k in range(len(order)):
        order[k] = k
    for k in range(len(order) - 1, 0, -1):
        other = integer(random, i, k + 1)
        order[k], order[other] = order[other], order[k]


@kernel
def fill(random: Array, features: int, inputs: Array, targets: Array, labels: Array, distances: Array) -> None:
    """Fill inputs [T, B, features + 3 T] and targets [T, B, 1]; labels and distances [T] are scratch space. A step
    shows a vector, its label, the label m of the reference and n, the last three as one-hots."""
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
        # The n-th farthest vector has n vectors farther away; in ties (of measure zero), the earlier vector is farther.
        for t in range(count):
            farther = 0
            for other in range(count):
                if distances[other] > distances[t] or (distances[other] == distances[t] and other < t):
                    farther += 1
            if farther == n:
                targets[count - 1, i, 0] = labels[t]


class NthFarthest(Task):
    """`num_objects` vectors with labels in random order; the answer is the label of the n-th farthest from vector m.

    n = 0 queries the farthest vector and n = num_objects - 1 queries m itself, as in the paper's text. Its released
    code sorts distances in ascending order, which reverses n.
    """

    def __init__(self, num_sequences: int, *, num_objects: int = 8, num_features: int = 16, **common: Any) -> None:
        super().__init__(num_sequences, **common)
        check_integer("num_objects", num_objects, 2)
        check_integer("num_features", num_features, 1)
        self.steps = self.classes = num_objects
        self.features = num_features
        self.inputs = num_features + 3 * num_objects
        # The last step shows n and m: for the last n the answer is m, for every other n one of the other labels.
        self.chance = 2 / num_objects
        self._labels, self._distances = np.zeros(num_objects, np.int64), np.zeros(num_objects, np.float64)

    def _fill(self, batch: Batch) -> None:
        fill(self.random, self.features, batch.inputs, batch.targets, self._labels, self._distances)
