"""Recall of one symbol after a delay, of the newest values of several keys, with noise or similar keys, and of the
order in which markers appeared (Hochreiter and Schmidhuber 1997, tasks 6a and 6b). The last one is a stream, for
gradients that are truncated every few steps (Stepleton et al. 2018, section 5.1)."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...base.compiled import kernel
from ...base.errors import check_choice, check_integer, low_high, refuse
from ..arrays import Array, zeroed
from ..randomness import integer, normal, uniform
from .task import Batch, Task, number_or_range

START, STOP, FIRST_DISTRACTOR, DISTRACTORS, MARKER = 0, 1, 2, 4, 6
WINDOWS = {2: ((10, 20), (50, 60)), 3: ((10, 20), (33, 43), (66, 76))}  # The steps at which each marker may appear
LENGTHS, SLOW_LENGTHS = (100, 110), (98, 133)
PATTERNS, PATTERN_STEPS, EDGE_STEPS = 5, 8, 4  # Slow: patterns per marker value, steps of each, and of START and STOP


@kernel
def fill_recall(
    random: Array, symbols: int, delays: tuple[int, int], noises: tuple[float, float], twin: bool, batch: Batch
) -> None:
    """Fill inputs [T, B, symbols + distractors + 1] and targets [T, B, 1]."""
    inputs, targets, _ = batch
    flag = inputs.shape[2] - 1
    for i in range(inputs.shape[1]):
        cue = integer(random, i, symbols)
        delay = delays[0] + integer(random, i, delays[1] - delays[0] + 1)
        noise = noises[0] + (noises[1] - noises[0]) * uniform(random, i)
        inputs[0, i, cue] = 1.0
        for t in range(1, delay + 1):
            inputs[t, i, symbols + integer(random, i, flag - symbols)] = 1.0
        inputs[delay + 1, i, flag] = 1.0
        if twin:
            inputs[delay + 1, i, cue] = 1.0
        targets[delay + 1, i, 0] = cue
        if noises[1] > 0.0:
            for t in range(delay + 2):
                for feature in range(inputs.shape[2]):
                    inputs[t, i, feature] += noise * normal(random, i)


class Recall(Task):
    """A symbol, then `delay` steps of distractors, then a flag that queries it.

    Args:
        delay: steps between cue and query: an integer, or (smallest, largest), sampled uniformly for each sequence.
        noise: standard deviation of normal noise on all features: a number or a range.
        num_symbols, num_distractors: number of cues, and of other symbols.
        twin: whether the query shows the cue again, so that the task needs no memory.
    """

    def set_up(
        self,
        delay: Any = (1, 100),
        noise: Any = 0.0,
        num_symbols: int = 8,
        num_distractors: int = 4,
        twin: bool = False,
    ) -> None:
        check_integer("num_symbols", num_symbols, 2)
        check_integer("num_distractors", num_distractors, 1)
        delays, noises = low_high("delay", delay, 0, None), number_or_range("noise", noise, 0)
        self.classes, self.steps, self.chance = num_symbols, delays[1] + 2, 1 / num_symbols
        self.inputs = num_symbols + num_distractors + 1
        self.fill = partial(fill_recall, self.random, num_symbols, delays, noises, twin)


@kernel
def draw_keys(random: Array, i: int, similarity: float, keys: Array, common: Array) -> None:
    """Sample unit vectors `keys` [P, D] whose cosines are `similarity` on average; common [D] is scratch space.

    key_p = (sqrt(s) c + sqrt(1 - s) d_p) / norm with normal c and d_p
    """
    size = keys.shape[1]
    for f in range(size):
        common[f] = normal(random, i)
    for p in range(len(keys)):
        squared = 0.0
        for f in range(size):
            keys[p, f] = np.sqrt(similarity) * common[f] + np.sqrt(1.0 - similarity) * normal(random, i)
            squared += keys[p, f] * keys[p, f]
        for f in range(size):
            keys[p, f] /= np.sqrt(squared)


@kernel
def fill_pairs(random: Array, options: Any, keys: Array, values: Array, common: Array, batch: Batch) -> None:
    """Fill inputs [T, B, D + num_values + 1] and targets [T, B, 1]; keys [P, D], values [P], common [D] are scratch."""
    fewest, writes, similarity, queries, num_values, twin = options
    inputs, targets, _ = batch
    most, size = keys.shape
    for i in range(inputs.shape[1]):
        pairs = fewest + integer(random, i, most - fewest + 1)
        shown = pairs + writes[0] + integer(random, i, writes[1] - writes[0] + 1)
        alike = similarity[0] + (similarity[1] - similarity[0]) * uniform(random, i)
        draw_keys(random, i, alike, keys, common)
        for t in range(shown + queries):
            p = t if t < pairs else integer(random, i, pairs)
            if t < shown:
                values[p] = integer(random, i, num_values)
            else:
                inputs[t, i, size + num_values] = 1.0
                targets[t, i, 0] = values[p]
            for f in range(size):
                inputs[t, i, f] = keys[p, f]
            if t < shown or twin:
                inputs[t, i, size + values[p]] = 1.0


class Pairs(Task):
    """Keys shown with one value each, some again with a new value; then keys without values query their newest values.
    Keys are random unit vectors, new in every sequence; values are one-hot.

    Args:
        pairs: number of pairs: an integer, or a range (smallest, largest), sampled uniformly for each sequence.
        writes: how often a random key gets a new value after all keys have been shown: an integer or a range.
        similarity: mean cosine of two keys, in 0..1: a number or a range.
        key_size, num_values, num_queries: features of a key, number of values, and queries, each of a random key.
        twin: whether queries show the value, so that the task needs no memory.
    """

    def set_up(
        self,
        pairs: Any = (1, 16),
        writes: Any = 0,
        similarity: Any = 0.0,
        key_size: int = 16,
        num_values: int = 8,
        num_queries: int = 4,
        twin: bool = False,
    ) -> None:
        check_integer("key_size", key_size, 1)
        check_integer("num_values", num_values, 2)
        check_integer("num_queries", num_queries, 1)
        (fewest, most), rewrites = low_high("pairs", pairs, 1, None), low_high("writes", writes, 0, None)
        options = fewest, rewrites, number_or_range("similarity", similarity, 0, 1), num_queries, num_values, twin
        self.classes, self.steps, self.chance = num_values, most + rewrites[1] + num_queries, 1 / num_values
        self.inputs = key_size + num_values + 1
        keys, values, common = np.zeros((most, key_size)), np.zeros(most, np.int64), np.zeros(key_size)
        self.fill = partial(fill_pairs, self.random, options, keys, values, common)


def slow_patterns() -> Array:
    """Return ten different patterns of distractors, the same for all seeds: int64 [2, PATTERNS, PATTERN_STEPS]."""
    random, end = np.random.default_rng(1997), FIRST_DISTRACTOR + DISTRACTORS
    patterns = dict[tuple[int, ...], None]()  # in order, each once
    while len(patterns) < 2 * PATTERNS:
        patterns[tuple(random.integers(FIRST_DISTRACTOR, end, PATTERN_STEPS).tolist())] = None
    return np.array([*patterns]).reshape(2, PATTERNS, PATTERN_STEPS)


class State(NamedTuple):
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
