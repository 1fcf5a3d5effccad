"""What all compiled games share: streams of randomness, compilation, checks at the door."""

import os
import subprocess
import sys

import numpy as np
import pytest

from engram.envs.arrays import first_outside
from engram.envs.compiled import kernel
from engram.envs.engine import check_choice, check_integer, check_range, low_high
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


def test_first_outside():
    assert first_outside(np.array([0, 3, 2]), 4) == -1
    assert first_outside(np.array([0, 4, -1]), 4) == 1
    assert first_outside(np.array([0, 0, -1]), 4) == 2


def test_compiled_code_is_kept_until_a_file_it_inlined_changes(tmp_path):
    rules, game = tmp_path / "toy_rules.py", tmp_path / "toy.py"
    head = "from engram.envs.compiled import kernel\n\n\n@kernel\n"
    game.write_text(
        f"from toy_rules import rule\n{head}def play(x):\n    return rule(x) + 1\n\n\n"
        "print(play(1), sum(play.stats.cache_hits.values()))\n"
    )

    def run(factor: int) -> str:
        rules.write_text(f"{head}def rule(x):\n    return {factor} * x\n")
        os.utime(rules, (factor, factor))
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(game)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert [run(10), run(10), run(20)] == ["11 0", "11 1", "21 0"]


def test_functions_without_a_file_are_compiled_but_not_kept():
    names: dict = {}
    exec(compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec"), names)
    assert kernel(names["double"])(4) == 8


def test_checks_name_the_parameter_its_value_and_what_is_allowed():
    for check, arguments, message in (
        (check_range, ("speed", 2.0, 0, 1), r"speed is 2\.0; allowed: 0\.\.1"),
        (check_range, ("speed", -1, 0, None), "speed is -1; allowed: at least 0"),
        (check_range, ("speed", float("nan"), 0, 1), "speed is nan"),
        (check_range, ("speed", "fast", 0, 1), "speed is 'fast'"),
        (check_integer, ("count", 1.0, 0, 2), r"count is 1\.0; expected an integer"),
        (check_integer, ("count", 3, 0, 2), r"count is 3; allowed: 0\.\.2"),
        (check_choice, ("view", "none", ("a", "b")), "view is 'none'; allowed: 'a', 'b'"),
        (low_high, ("span", (2, 1), 0, 5), r"span is \(2, 1\); expected an integer, or two: smallest, largest"),
        (low_high, ("span", (1, 6), 0, 5), r"span is 6; allowed: 0\.\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            check(*arguments)
    assert low_high("span", 3, 0, 5) == (3, 3)
    assert low_high("span", [1, 2], 0, None) == (1, 2)
