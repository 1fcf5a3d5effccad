"""Recall with delay and noise: which symbol was shown first?"""

from typing import Any

from ...base.compiled import kernel
from ...base.messages import check_flag, check_integer, low_high
from ..arrays import Array
from ..randomness import integer, normal, uniform
from .task import Batch, Task, number_or_range


@kernel
def fill(
    random: Array,
    symbols: int,
    distractors: int,
    shortest: int,
    longest: int,
    least: float,
    most: float,
    twin: bool,
    inputs: Array,
    targets: Array,
) -> None:
    """Fill inputs [T, B, symbols + distractors + 1], targets [T, B, 1]; delays shortest..longest, noise least..most."""
    for i in range(inputs.shape[1]):
        cue = integer(random, i, symbols)
        delay = shortest + integer(random, i, longest - shortest + 1)
        noise = least + (most - least) * uniform(random, i)
        inputs[0, i, cue] = 1.0
        for t in range(1, delay + 1):
            inputs[t, i, symbols + integer(random, i, distractors)] = 1.0
        inputs[delay + 1, i, symbols + distractors] = 1.0
        if twin:
            inputs[delay + 1, i, cue] = 1.0
        targets[delay + 1, i, 0] = cue
        if most > 0.0:
            for t in range(delay + 2):
                for feature in range(inputs.shape[2]):
                    inputs[t, i, feature] += noise * normal(random, i)


class Recall(Task):
    """A symbol, then `delay` steps of distractors, then a flag that queries it.

    Args:
        delay: steps between cue and query: an integer, or (smallest, largest), sampled uniformly for each sequence.
        noise: standard deviation of normal noise on all features: a number or a range.
        num_symbols: number of cues.
        num_distractors: number of other symbols.
        twin: whether the query shows the cue again, so that the task needs no memory.
    """

    def __init__(
        self,
        num_sequences: int,
        *,
        delay: Any = (1, 100),
        noise: Any = 0.0,
        num_symbols: int = 8,
        num_distractors: int = 4,
        twin: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(num_sequences, **common)
        check_integer("num_symbols", num_symbols, 2)
        check_integer("num_distractors", num_distractors, 1)
        check_flag("twin", twin)
        self.shortest, self.longest = low_high("delay", delay, 0, None)
        self.noise, self.twin, self.distractors = number_or_range("noise", noise, 0), twin, num_distractors
        self.classes, self.steps = num_symbols, self.longest + 2
        self.inputs = num_symbols + num_distractors + 1
        self.chance = 1 / num_symbols

    def _fill(self, batch: Batch) -> None:
        least, most = map(float, self.noise)
        sizes = self.classes, self.distractors, self.shortest, self.longest
        fill(self.random, *sizes, least, most, self.twin, batch.inputs, batch.targets)
