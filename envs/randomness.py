"""Random numbers for compiled environments: one 64-bit stream per environment.

A stream depends only on the seed and the environment's index, so results do not depend on how a batch is split across
actors. The generator is splitmix64 (Steele, Lea, Flood 2014): one addition and one mixing function per sample.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.compiled import kernel
from .arrays import Array

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def streams(seed: int, indices: Iterable[int]) -> Array:
    """Initial states of the random streams of environments `indices` for a seed: uint64 [len(indices)]."""
    states = [np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(1, np.uint64)[0] for index in indices]
    return np.array(states, np.uint64)


@kernel
def next_bits(random: Array, i: int) -> Any:
    """Advance stream i and return 64 random bits."""
    random[i] += _STEP
    return mixed(random[i])


@kernel
def mixed(z: Any) -> Any:
    """Mix z (uint64), so that every bit of the result depends on all bits of z."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@kernel
def uniform(random: Array, i: int) -> float:
    """Sample a float64 in [0, 1) from stream i."""
    return (next_bits(random, i) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def integer(random: Array, i: int, n: int) -> int:
    """Sample an int64 in [0, n) from stream i (bias below n / 2**32)."""
    return int(np.int64(((next_bits(random, i) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)))


@kernel
def draw_order(random: Array, i: int, order: Array) -> None:
    """Write a random order of 0 .. len(order) - 1 into `order` (Fisher and Yates)."""
    for k in range(len(order)):
        order[k] = k
    for k in range(len(order) - 1, 0, -1):
        other = integer(random, i, k + 1)
        order[k], order[other] = order[other], order[k]


@kernel
def normal(random: Array, i: int) -> float:
    """Sample a standard normal float64 from stream i: sqrt(-2 ln u) cos(2 pi v) (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform(random, i)))
    return float(radius * np.cos(2.0 * np.pi * uniform(random, i)))
