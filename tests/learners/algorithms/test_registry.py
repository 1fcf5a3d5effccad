"""Algorithms by name, their settings, and mistakes met with one clear line."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from engram.learners.algorithms import algorithm_class, algorithm_names, make_algorithm
from engram.learners.config import LearnerConfig


def test_the_registered_ones_can_be_made() -> None:
    assert {"a2c", "ppo", "vtrace"} <= set(algorithm_names())
    for name in algorithm_names():
        make_algorithm(name)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vtrce", {}, "unknown algorithm 'vtrce'; did you mean: vtrace"),
        ("ppo", {"epoch": 2}, "'ppo' has no setting 'epoch'; did you mean: epochs"),
        ("ppo", {"epochs": 0}, "epochs is 0; allowed: at least 1"),
        ("ppo", {"epochs": "four"}, "epochs is 'four'; allowed: a value of type int"),
        ("vtrace", {"trace_lambda": 1.5}, "trace_lambda is 1.5; allowed: 0..1"),
        ("no_such_module:Thing", {}, "cannot load algorithm 'no_such_module:Thing'"),
        ("math:pi", {}, "'math:pi' is not a subclass"),
    ],
)
def test_mistakes_name_what_is_allowed(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnerConfig(algorithm=name, algorithm_args=settings)


def test_whole_numbers_serve_where_fractions_are_meant() -> None:
    assert LearnerConfig(algorithm="a2c", algorithm_args={"gae_lambda": 1}).method.settings.gae_lambda == 1.0


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "algorithms.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| ([\w.]+) \|", page, re.MULTILINE)
    settings = [
        (name, each.name, str(each.default))
        for name in algorithm_names()
        for each in fields(algorithm_class(name).Settings)
    ]
    assert sorted(listed) == sorted(settings)
