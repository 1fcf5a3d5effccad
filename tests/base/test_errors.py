"""Parts of messages: the name, its value, what is allowed, the nearest name."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest

from engram.base import errors
from engram.base.errors import (
    above,
    below,
    check_choice,
    check_flag,
    check_integer,
    check_keys,
    check_name,
    check_range,
    low_high,
    nearest,
)
from engram.base.settings import Settings, setting


def test_the_nearest_names() -> None:
    assert nearest("boxwrld", ["boxworld", "maze", "t-maze"]) == "boxworld"
    assert nearest("zzz", ["b", "a"]) == "b, a"
    assert nearest("zzz", []) == "(none)"
    assert nearest(9, (f"name{k}" for k in range(20))).endswith("name11 and 8 others")
    assert nearest("name1", (f"name{k}" for k in range(20)), count=1) == "name1"


def test_numbers_of_any_kind_are_compared() -> None:
    for value in (0, 1, 0.5, np.float32(1), np.int8(0), 10**400):
        check_range("x", value, 0, None)
    check_integer("x", np.int64(3), 3, 3)
    for check in (check_range, check_integer):
        check("x", -(10**400), None, 0)


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_range, ("speed", 2.0, 0, 1), "speed is 2.0; allowed: 0..1"),
        (check_range, ("speed", -1, 0, None), "speed is -1; allowed: at least 0"),
        (check_range, ("speed", float("nan"), 0, 1), "speed is nan; allowed: 0..1"),
        (check_range, ("speed", float("inf"), 0, None), "speed is inf; allowed: at least 0"),
        (check_range, ("speed", float("-inf"), None, 1), "speed is -inf; allowed: at most 1"),
        (check_range, ("speed", float("nan"), None, None), "speed is nan; allowed: a finite number"),
        (check_range, ("speed", "fast", 0, 1), "speed is 'fast'; allowed: 0..1"),
        (check_range, ("speed", True, 0, 1), "speed is True; allowed: 0..1"),
        (check_integer, ("count", 1.0, 0, 2), "count is 1.0; expected an integer"),
        (check_integer, ("count", True, 0, 2), "count is True; expected an integer"),
        (check_integer, ("count", 3, 0, 2), "count is 3; allowed: 0..2"),
        (check_integer, ("count", -1, 0), "count is -1; allowed: at least 0"),
        (check_integer, ("count", 2**31, 0), "count is 2147483648; allowed: 0..2147483647"),
        (low_high, ("count", 2**31, 0, None), "count is 2147483648; allowed: 0..2147483647"),
        (check_choice, ("view", "none", ("a", "b")), "view is 'none'; allowed: 'a', 'b'"),
        (check_choice, ("view", ["a"], ("a", "b")), "view is ['a']; allowed: 'a', 'b'"),
        (check_flag, ("shown", 2), "shown is 2; allowed: True, False"),
        (
            check_name,
            ("environment", "maz", ["maze", "t-maze"]),
            "unknown environment 'maz'; did you mean: maze, t-maze?",
        ),
        (check_keys, ("maze", "parameter", ["sise"], {"size": 1}), "maze has no parameter 'sise'; did you mean: size?"),
        (check_keys, ("maze", "parameter", [3], []), "maze has no parameter 3; none available"),
        (check_name, ("environment", "abc", ["maze", "t-maze"]), "unknown environment 'abc'; available: maze, t-maze"),
    ],
)
def test_checks_name_the_parameter_its_value_and_what_is_allowed(check, arguments, message) -> None:
    with pytest.raises(ValueError) as problem:  # noqa: PT011 (the whole message is compared)
        check(*arguments)
    assert str(problem.value) == message


@dataclass(frozen=True)
class Declared(Settings):
    prefix: ClassVar[str] = "pbt."

    lr: float = setting(0.1, above(0, 0.1))
    discount: float = setting(0.9, (0, 1))
    length: int | Literal["auto"] = setting("auto", (0, None))
    decay: float = setting(0.0, below(0.1))
    schedule: Literal["constant", "linear"] = "linear"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 0.0}, "pbt.lr is 0.0; allowed: above 0, at most 0.1"),
        ({"lr": float("nan")}, "pbt.lr is nan; allowed: above 0, at most 0.1"),
        ({"discount": float("inf")}, "pbt.discount is inf; allowed: 0..1"),
        ({"length": -1}, "pbt.length is -1; allowed: auto, at least 0"),
        ({"length": "none"}, "pbt.length is 'none'; allowed: auto, at least 0"),
        ({"decay": 0.1}, "pbt.decay is 0.1; allowed: at least 0, below 0.1"),
        ({"decay": -0.1}, "pbt.decay is -0.1; allowed: at least 0, below 0.1"),
        ({"schedule": "step"}, "pbt.schedule is 'step'; allowed: 'constant', 'linear'"),
    ],
)
def test_a_setting_is_checked_as_its_field_declares(values, message) -> None:
    with pytest.raises(ValueError) as problem:  # noqa: PT011
        Declared(**values)
    assert str(problem.value) == message
    Declared(length=3, schedule="constant")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (950, "950 B"),
        (999.6, "1 kB"),
        (12_345, "12.3 kB"),
        (4.56e6, "4.56 MB"),
        (2e12, "2 TB"),
        (5e18, "5,000 PB"),
    ],
)
def test_sizes_in_words(number, text) -> None:
    assert errors.size_in_words(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.2, "8 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (18_120, "5 h 2 min"), (4 * 86400 + 3600, "4 days 1 h")],
)
def test_durations_in_words(seconds, text) -> None:
    assert errors.duration_in_words(seconds) == text


def test_ranges_are_given_as_one_number_or_two():
    for span, message in (
        ((2, 1), r"span is \(2, 1\); expected an integer, or two: smallest, largest"),
        ((1, 6), r"span is 6; allowed: 0\.\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            low_high("span", span, 0, 5)
    assert low_high("span", 3, 0, 5) == (3, 3)
    assert low_high("span", [1, 2], 0, None) == (1, 2)
