"""Parts that all compiled games share: streams of randomness, checks of actions and parameters."""

import numpy as np

from engram.envs.randomness import integer, next_bits, streams, uniform


def splitmix64(state: int) -> tuple[int, int]:
    """The generator on Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return state, z ^ (z >> 31)


def test_streams_follow_the_published_generator():
    random = streams(5, range(3))
    for i in (0, 1, 2, 1, 1):
        state, bits = splitmix64(int(random[i]))
        others = np.delete(random, i)
        assert int(next_bits(random, i)) % 2**64 == bits
        assert int(random[i]) == state
        np.testing.assert_array_equal(np.delete(random, i), others)
    # the first output of seed 0, as published with the reference implementation
    assert int(next_bits(np.zeros(1, np.uint64), 0)) % 2**64 == 0xE220A8397B1DCDAF


def test_a_stream_depends_on_seed_and_index_alone():
    np.testing.assert_array_equal(streams(5, [7, 3]), streams(5, range(10))[[7, 3]])
    assert len({*streams(5, range(50)).tolist(), *streams(6, range(50)).tolist()}) == 100


def test_draws_are_uniform():
    random = streams(0, range(1))
    floats = np.array([uniform(random, 0) for _ in range(20_000)])
    assert 0.0 <= floats.min() < 0.001 < 0.999 < floats.max() < 1.0
    assert abs(floats.mean() - 0.5) < 4 / np.sqrt(12 * len(floats))
    counts = np.bincount([integer(random, 0, 7) for _ in range(21_000)], minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - 3000).max() < 4 * np.sqrt(3000)
    assert {integer(random, 0, 1) for _ in range(20)} == {0}
