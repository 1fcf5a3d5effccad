"""Vectors compared with each other: n-th farthest (Santoro et al. 2018, appendix A.1) and priority sort (Graves et al.
2014, section 4.5)."""

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
def rank(values: Array, t: int) -> int:
    """Number of values above values[t]; of equal ones (of measure zero), the earlier is above."""
    above = 0
    for other in range(len(values)):
        above += values[other] > values[t] or (values[other] == values[t] and other < t)
    return above


@kernel
def farthest(random: Array, features: int, inputs: Array, targets: Array, labels: Array, distances: Array) -> None:
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
        for t in range(count):
            if rank(distances, t) == n:
                targets[count - 1, i, 0] = labels[t]


class NthFarthest(Task):
    """`num_objects` vectors with labels in random order; the answer is the label of the n-th farthest from vector m.

    n = 0 queries the farthest vector and n = num_objects - 1 queries m itself, as in the paper's text. Its released
    code sorts distances in ascending order, which reverses n.
    """

    def set_up(self, num_objects: int = 8, num_features: int = 16) -> None:
        check_integer("num_objects", num_objects, 2)
        check_integer("num_features", num_features, 1)
        self.steps = self.classes = num_objects
        self.features = num_features
        self.inputs = num_features + 3 * num_objects
        # The last step shows n and m: for the last n the answer is m, for every other n one of the other labels.
        self.chance = 2 / num_objects

    def _fill(self, batch: Batch) -> None:
        labels, distances = np.zeros(self.steps, np.int64), np.zeros(self.steps)
        farthest(self.random, self.features, batch.inputs, batch.targets, labels, distances)


@kernel
def sort(random: Array, outputs: int, bits: int, inputs: Array, targets: Array, priority: Array) -> None:
    """Fill inputs [items + outputs, B, bits + 2] and targets [.., B, bits]; priority [items] is scratch space."""
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
    """`num_items` random binary vectors with priorities in (-1, 1), then queries of the `num_outputs` highest ones.

    Queries begin with the highest priority and show a separate flag; each bit is one of two classes.
    """

    classes = 2
    chance = 0.5

    def set_up(self, num_items: int = 20, num_outputs: int = 16, num_bits: int = 8) -> None:
        check_integer("num_items", num_items, 1)
        check_integer("num_outputs", num_outputs, 1, num_items)
        check_integer("num_bits", num_bits, 1)
        self.items, self.outputs, self.groups = num_items, num_outputs, num_bits
        self.steps, self.inputs = num_items + num_outputs, num_bits + 2

    def _fill(self, batch: Batch) -> None:
        sort(self.random, self.outputs, self.groups, batch.inputs, batch.targets, np.zeros(self.items))
