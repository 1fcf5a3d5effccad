"""Temporal order: in which order did the markers appear? (Hochreiter and Schmidhuber 1997, tasks 6a and 6b.) It is a
stream, for gradients that are truncated every few steps (Stepleton et al. 2018, section 5.1)."""

from typing import Any, NamedTuple

import numpy as np

from ...base.compiled import kernel
from ...base.errors import check_choice, check_integer, refuse
from ..arrays import Array, zeroed
from ..randomness import integer
from .task import Batch, Task

START, STOP, FIRST_DISTRACTOR, DISTRACTORS, MARKER = 0, 1, 2, 4, 6
WINDOWS = {2: ((10, 20), (50, 60)), 3: ((10, 20), (33, 43), (66, 76))}  # The steps at which each marker may appear
LENGTHS, SLOW_LENGTHS = (100, 110), (98, 133)
PATTERNS, PATTERN_STEPS, EDGE_STEPS = 5, 8, 4  # Slow: patterns per marker value, steps of each, and of START and STOP


def slow_patterns() -> Array:
    """Return ten different patterns of distractors, the same for all seeds: int64 [2, PATTERNS, PATTERN_STEPS]."""
    random, end = np.random.default_rng(1997), FIRST_DISTRACTOR + DISTRACTORS
    patterns = dict[tuple[int, ...], None]()  # in order, each once
    while len(patterns) < 2 * PATTERNS:
        patterns[tuple(random.integers(FIRST_DISTRACTOR, end, PATTERN_STEPS).tolist())] = None
    return np.array([*patterns]).reshape(2, PATTERNS, PATTERN_STEPS)


class State(NamedTuple):
    """Position and content of each sequence."""

    random: Array
    step: Array  # int64 [B]: step of the sequence; at `length`, the next one begins
    length: Array
    at: Array  # int64 [B, markers]: the step at which each marker begins
    value: Array  # int64 [B, markers]: 0 or 1
    pattern: Array  # int64 [B, markers]: pattern in the low-frequency variant


@kernel
def begin(state: State, i: int, windows: Array, lengths: tuple[int, int]) -> None:
    """Sample a new sequence with index i."""
    state.step[i] = 0
    state.length[i] = lengths[0] + integer(state.random, i, lengths[1] - lengths[0] + 1)
    for m in range(len(windows)):
        state.at[i, m] = windows[m, 0] + integer(state.random, i, windows[m, 1] - windows[m, 0] + 1)
        state.value[i, m] = integer(state.random, i, 2)
        state.pattern[i, m] = integer(state.random, i, PATTERNS)


@kernel
def symbol(state: State, i: int, slow: bool, patterns: Array) -> Any:
    """Return the symbol that sequence i shows at its current step."""
    step, last = state.step[i], state.length[i] - 1
    edge = EDGE_STEPS if slow else 1
    if step < edge:
        return START
    if step > last - edge:
        return STOP
    shown = FIRST_DISTRACTOR + integer(state.random, i, DISTRACTORS)
    for m in range(state.at.shape[1]):
        since = step - state.at[i, m]
        if slow and 0 <= since < PATTERN_STEPS:
            shown = patterns[state.value[i, m], state.pattern[i, m], since]
        elif not slow and since == 0:
            shown = MARKER + state.value[i, m]
    return shown


@kernel
def fill(state: State, windows: Array, patterns: Array, lengths: tuple[int, int], slow: bool, batch: Batch) -> None:
    """Fill the next T steps of every sequence: inputs [T, B], targets [T, B, 1], where new sequences begin [T, B]."""
    inputs, targets, reset = batch
    for i in range(inputs.shape[1]):
        for t in range(len(inputs)):
            if state.step[i] >= state.length[i]:
                begin(state, i, windows, lengths)
                reset[t, i] = True
            inputs[t, i] = symbol(state, i, slow, patterns)
            state.step[i] += 1
            if state.step[i] == state.length[i]:
                answer = 0
                for m in range(len(windows)):
                    answer = 2 * answer + state.value[i, m]
                targets[t, i, 0] = answer


class TemporalOrder(Task):
    """A stream of sequences of distractors between a start and an end marker, with 2 or 3 markers X or Y among them.

    At the end, the values of the markers in their order are queried: 4 or 8 classes. Sequences have 100 to 110 steps.
    In the low-frequency variant (2 markers), a marker is one of five patterns of eight distractors, which differ
    for X and Y; start and end markers last four steps, sequences 98 to 133; the paper does not specify its patterns.

    Args:
        slow: whether to use the low-frequency variant.
        chunk: steps of a batch.
        resets: whether to reset the memory where a sequence begins; the paper is silent, and the task harder without.
    """

    symbols = True
    stream = True
    inputs = MARKER + 2

    def set_up(self, markers: int = 2, slow: bool = False, chunk: int = 100, resets: bool = False) -> None:
        check_choice("markers", markers, tuple(WINDOWS))
        check_integer("chunk", chunk, 1)
        refuse(slow and markers != 2, f"markers is {markers} with slow; allowed: 2")
        self.resets, self.steps, self.classes, self.chance = resets, chunk, 2**markers, 0.5**markers
        each = (np.int64, markers)
        state = zeroed(State, self.num_sequences, at=each, value=each, pattern=each)
        self._sequences = state._replace(random=self.random)
        self.state = self._sequences._asdict()
        lengths = SLOW_LENGTHS if slow else LENGTHS
        self._rules = np.array(WINDOWS[markers]), slow_patterns(), lengths, slow

    def fill(self, batch: Batch) -> None:
        fill(self._sequences, *self._rules, batch)
        if not self.resets:
            batch.reset[:] = False
