"""Settings that differ between members: words, values drawn, and mistakes met with one clear line."""

import numpy as np
import pytest

from engram.learners.config import LearnerConfig
from engram.learners.population.config import PopulationConfig, applied, parse
from engram.learners.population.decisions import decide, initial_values


def draw(word: str, number: int = 2000) -> np.ndarray:
    (explored,) = parse([word])
    rng = np.random.default_rng(1)
    return np.array([explored.sample(rng) for _ in range(number)])


def test_samples_are_distributed_as_the_words_say() -> None:
    logs = np.log10(draw("learner.lr=loguniform(1e-5,1e-3)"))
    assert -5 <= logs.min() < -4.98
    assert -3.02 < logs.max() <= -3
    assert np.mean(logs) == pytest.approx(-4, abs=0.05)
    plain = draw("learner.entropy_cost = uniform( 0, .02 )")
    assert np.mean(plain) == pytest.approx(0.01, abs=5e-4)
    assert 0 <= plain.min() < plain.max() <= 0.02
    values, counts = np.unique(draw("learner.bptt_length=choice(100,3,20)"), return_counts=True)
    assert values.tolist() == [3, 20, 100]
    assert counts.min() > 550


def test_whole_numbers_stay_whole() -> None:
    (explored,) = parse(["learner.bptt_length=uniform(3,100)"])
    rng = np.random.default_rng(2)
    value = explored.sample(rng)
    for _ in range(20):
        assert type(value) is int
        assert 3 <= value <= 100
        value = explored.perturb(value, (0.8, 1.2), rng)


def test_a_perturbed_value_stays_in_its_range_and_a_choice_moves_to_a_neighbor() -> None:
    ranged, choice = parse(["learner.discount=uniform(0.9,1)", "learner.bptt_length=choice(3,20,100)"])
    rng = np.random.default_rng(3)
    assert {ranged.perturb(0.95, (0.8, 1.2), rng) for _ in range(20)} == {0.9, 1.0}
    assert {choice.perturb(20, (0.8, 1.2), rng) for _ in range(20)} == {3, 100}
    assert {choice.perturb(3, (0.8, 1.2), rng) for _ in range(20)} == {3, 20}


def test_every_setting_mutates_by_itself() -> None:
    explore = ("learner.lr=loguniform(1e-5,1e-3)", "learner.entropy_cost=uniform(0.001,0.1)")
    config = PopulationConfig(scheme="truncation", explore=explore, factors=(0.5, 2.0), resample=0.0, window=2)
    values = {"learner.lr": 1e-4, "learner.entropy_cost": 0.01}
    copies = (decide(config, 4, generation, [0], [[0.0] * 2, [1.0] * 2], [values] * 2)[0] for generation in range(60))
    seen = {tuple(decision.new.values()) for decision in copies}
    assert seen == {(a, b) for a in (5e-5, 2e-4) for b in (0.005, 0.02)}


def test_values_reach_the_learners_configuration() -> None:
    explore = ("learner.lr=loguniform(1e-5,1e-3)", "learner.bptt_length=choice(3,20)")
    first, second = initial_values(PopulationConfig(explore=explore), 5, 2)
    assert first != second
    config = applied(LearnerConfig(value_cost=0.3), first)
    assert (config.lr, config.bptt_length, config.value_cost) == (*first.values(), 0.3)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("learner.lr", r"'learner.lr' is not of the form SETTING=loguniform\(LOW,HIGH\), uniform"),
        ("learner.lr=1e-3", "not of the form"),
        ("learner.lrr=uniform(1,2)", "learner.lrr: not a numeric setting; did you mean: learner.lr"),
        ("lr=uniform(1e-4,1e-3)", "lr: not a numeric setting; did you mean: learner.lr"),
        ("qqqqqqqqqqqq=uniform(1,2)", "not a numeric setting; available: learner.gae_lambda"),
        ("learner.optimizer=choice(1,2)", "learner.optimizer: not a numeric setting"),
        (
            "learner.lr=unifrom(1,2)",
            "'unifrom'; allowed: loguniform, uniform, choice",
        ),
        ("learner.lr=uniform(2,1)", r"learner.lr: uniform\(2,1\) is empty; allowed: LOW below HIGH"),
        ("learner.lr=uniform(1,1)", "is empty; allowed: LOW below HIGH"),
        ("learner.lr=uniform(1)", r"has 1 values; allowed: uniform\(LOW,HIGH\)"),
        ("learner.lr=uniform(a,2)", "learner.lr: 'a' is not a number"),
        ("learner.lr=uniform(0,inf)", "'inf' is not a number"),
        ("learner.entropy_cost=loguniform(0,1)", "begins at 0; allowed: above 0"),
        ("learner.discount=uniform(0.9,1.5)", "discount is 1.5; allowed: 0..1"),
        ("learner.lr=choice(0,1e-3)", "lr is 0.0; allowed: above 0"),
        ("learner.lr=choice(1e-3,0.001)", "has fewer than two different values; allowed: two or more"),
        ("learner.bptt_length=uniform(1.5,3)", "1.5 is not a whole number"),
    ],
)
def test_a_mistake_names_the_setting_and_what_is_allowed(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        PopulationConfig(explore=(word,))
    assert "\n" not in str(caught.value)


def test_a_setting_cannot_be_named_twice() -> None:
    with pytest.raises(ValueError, match=r"learner\.lr twice"):
        PopulationConfig(explore=("learner.lr=uniform(1,2)", "learner.lr=uniform(1,3)"))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("warmup", -1, "at least 0"),
        ("interval", 0, "at least 1"),
        ("window", 1, "at least 2"),
        ("p_value", 1.5, r"0\.\.1"),
        ("quantile", 0.6, "at most 0.5"),
        ("quantile", 0.0, "above 0"),
        ("factors", (1.2, 0.8), "the smaller one first"),
        ("resample", -0.1, r"0\.\.1"),
        ("scheme", "best", "'lp-rnn', 'truncation'"),
    ],
)
def test_ranges_of_the_schemes_numbers(name: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"pbt\.{name} is .*{allowed}"):
        PopulationConfig(**{name: value})  # type: ignore[arg-type]
