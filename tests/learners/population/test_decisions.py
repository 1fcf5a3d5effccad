"""Decisions of a population: the t-test against Welch's formula and scipy, selection and seeded replays."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from engram.learners.population.config import PopulationConfig
from engram.learners.population.decisions import PopulationController, decide, initial_values, welch

EXPLORE = ("learner.lr=loguniform(1e-5,1e-2)", "learner.bptt_length=choice(3,20,100)")
# Two samples of the literature on Welch's test: t = -2.46 with 25.0 degrees of freedom, p = 0.021.
KNOWN_A = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
KNOWN_B = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]


def returns(seed: int, mean: float, spread: float, number: int = 12) -> list[float]:
    return np.random.default_rng(seed).normal(mean, spread, number).tolist()


def slow_welch(a: list[float], b: list[float]) -> float:
    """Welch 1947 from the definition, with the degrees of freedom of Welch and Satterthwaite."""
    (n, m), (x, y) = (len(a), len(b)), (math.fsum(a) / len(a), math.fsum(b) / len(b))
    u = sum((z - x) ** 2 for z in a) / (n - 1) / n
    v = sum((z - y) ** 2 for z in b) / (m - 1) / m
    freedom = (u + v) ** 2 / (u**2 / (n - 1) + v**2 / (m - 1))
    return float(2 * stats.t.sf(abs(x - y) / math.sqrt(u + v), freedom))


@pytest.mark.parametrize("seed", range(5))
def test_p_is_that_of_welchs_formula(seed: int) -> None:
    a, b = returns(seed, 0.0, 1.0, 7), returns(seed + 100, 0.8, 3.0, 12)
    assert welch(a, b) == pytest.approx(slow_welch(a, b), rel=1e-10)


def test_p_of_a_known_pair_of_samples() -> None:
    assert welch(KNOWN_A, KNOWN_B) == pytest.approx(0.021, abs=5e-4)
    assert welch([1.0, 1.0], [1.0, 1.0]) is None
    assert welch([0.0, 0.0], [1.0, 1.0]) == 0.0


@pytest.mark.parametrize("difference", [-2.0, -0.5, 0.0, 0.5, 0.8, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_weights_move_exactly_when_scipy_finds_the_other_one_better(seed: int, difference: float) -> None:
    config = PopulationConfig(window=12)
    scores = [returns(seed, 0.0, 1.0), returns(seed + 50, difference, 1.0)]
    mine, yours = decide(config, 1, 1, [0, 1], scores, [{}, {}])
    p = stats.ttest_ind(scores[0], scores[1], equal_var=False).pvalue
    better = [np.mean(scores[1]) > np.mean(scores[0]), np.mean(scores[0]) > np.mean(scores[1])]
    assert [mine.copy, yours.copy] == [p < 0.05 and each for each in better]
    assert (mine.opponent, yours.opponent) == (1, 0)
    assert mine.p_value == pytest.approx(p)
    assert mine.mean == yours.opponent_mean == pytest.approx(np.mean(scores[0]))


def test_a_better_mean_alone_is_not_enough_and_neither_is_a_difference_the_wrong_way() -> None:
    config = PopulationConfig(window=3)
    close = [[0.0, 1.0, 2.0], [0.5, 1.5, 2.5]]
    assert not decide(config, 1, 1, [0], close, [{}, {}])[0].copy
    apart = [[9.0, 9.1, 9.2], [1.0, 1.1, 1.2]]
    assert not decide(config, 1, 1, [0], apart, [{}, {}])[0].copy
    assert decide(config, 1, 1, [1], apart, [{}, {}])[0].copy
    assert not decide(PopulationConfig(window=3, p_value=0.0), 1, 1, [1], apart, [{}, {}])[0].copy


def test_settings_never_change_in_an_lp_rnn_population() -> None:
    config = PopulationConfig(window=3, explore=EXPLORE)
    values = initial_values(config, 1, 2)
    decision = decide(config, 1, 1, [0], [[0.0, 0.1, 0.2], [1.0, 1.1, 1.2]], values)[0]
    assert decision.copy
    assert decision.old == decision.new == values[0] != values[1]


@pytest.mark.integration
def test_the_opponent_is_any_other_member_with_a_full_window_equally_often() -> None:
    config = PopulationConfig(window=3)
    scores = [[0.0] * 3, [0.0] * 3, [0.0] * 2, [0.0] * 3, [0.0] * 3]
    met = Counter(decide(config, 1, g, [1], scores, [{}] * 5)[0].opponent for g in range(1, 901))
    assert set(met) == {0, 3, 4}
    assert all(abs(count - 300) < 60 for count in met.values())
    alone = decide(config, 1, 1, [0], [[0.0] * 3, [5.0] * 2], [{}, {}])[0]
    assert alone.opponent is None
    assert not alone.copy


def test_truncation_lets_the_worst_copy_one_of_the_best() -> None:
    config = PopulationConfig(scheme="truncation", window=2, quantile=0.34, explore=EXPLORE)
    means = [3.0, 5.0, 1.0, 6.0, 2.0, 4.0]
    scores = [[mean, mean] for mean in means]
    values = initial_values(config, 1, 6)
    sources: Counter[int | None] = Counter()
    for generation in range(1, 201):
        decisions = decide(config, 1, generation, range(6), scores, values)
        assert [d.member for d in decisions if d.copy] == [2, 4], "the worst two"
        sources.update(d.opponent for d in decisions if d.copy)
        for d in decisions:
            assert d.copy or d.old == d.new == values[d.member]
            assert 1e-5 <= d.new["learner.lr"] <= 1e-2
            assert d.new["learner.bptt_length"] in (3, 20, 100)
    assert set(sources) == {1, 3}, "the best two"
    assert abs(sources[1] - 200) < 40


def test_truncation_perturbs_or_draws_afresh() -> None:
    scores, values = [[0.0, 0.0], [1.0, 1.0]], [{"learner.lr": 1e-3}, {"learner.lr": 2e-3}]
    new: dict[float, set[float]] = {}
    for resample in (0.0, 0.5):
        config = PopulationConfig(
            scheme="truncation", window=2, quantile=0.5, resample=resample, explore=EXPLORE[:1], factors=(0.5, 4.0)
        )
        new[resample] = {decide(config, 1, g, [0], scores, values)[0].new["learner.lr"] for g in range(1, 61)}
    assert new[0.0] == {1e-3, 8e-3}, "the opponent's value times a factor"
    assert new[0.0] < new[0.5]
    assert len(new[0.5]) > 15


def test_truncation_leaves_equals_alone_and_waits_for_full_windows() -> None:
    config = PopulationConfig(scheme="truncation", window=2)
    assert not any(d.copy for d in decide(config, 1, 1, range(4), [[1.0, 1.0]] * 4, [{}] * 4))
    scores = [[0.0, 0.0], [5.0], [6.0], [7.0]]
    assert not decide(config, 1, 1, [0], scores, [{}] * 4)[0].copy


@pytest.mark.parametrize("scheme", ["lp-rnn", "truncation"])
def test_a_decision_is_a_function_of_what_the_log_holds(scheme: str) -> None:
    config = PopulationConfig(scheme=scheme, window=6, explore=EXPLORE)  # type: ignore[arg-type]
    values = initial_values(config, 3, 5)
    assert values == initial_values(config, 3, 5) != initial_values(config, 4, 5)
    seen = set()
    for generation in range(1, 30):
        scores = [returns(10 * generation + i, 0.3 * i, 1.0, 6) for i in range(5)]
        decisions = decide(config, 3, generation, [4, 0, 2], scores, values)
        assert [d.member for d in decisions] == [4, 0, 2]
        read = json.loads(json.dumps({"scores": scores, "values": values, "evaluated": [4, 0, 2]}))
        again = decide(config, 3, generation, read["evaluated"], read["scores"], read["values"])
        assert again == decisions
        seen.add(decisions == decide(config, 8, generation, [4, 0, 2], scores, values))
    assert False in seen, "the seed has no effect"


# -- the controller's memory -------------------------------------------------------------------------------------------


def controller(**config: object) -> PopulationController:
    return PopulationController(PopulationConfig(warmup=10, interval=6, window=4, **config), seed=1, members=3)  # type: ignore[arg-type]


def test_members_are_evaluated_by_their_own_clocks_and_with_full_windows() -> None:
    population = controller()
    population.record(0, np.zeros(9))
    assert population.due(range(3)) == []
    population.record(0, np.zeros(1))
    population.record(2, np.zeros(12))
    assert population.due(range(3)) == [0, 2]
    assert population.due([1, 2]) == [2]
    population.evaluate([0, 2])
    assert population.due(range(3)) == []
    population.record(0, np.zeros(6))
    population.record(2, np.zeros(5))
    assert population.due(range(3)) == [0]
    eager = PopulationController(PopulationConfig(warmup=0, interval=1, window=4), 1, 2)
    eager.record(0, np.zeros(3))
    assert eager.due([0, 1]) == []


def test_a_copy_clears_the_window_and_hands_on_the_descent() -> None:
    population = controller()
    for member, mean in enumerate((0.0, 1.0, 2.0)):
        population.record(member, np.float32(mean) + np.array([0.0, 0.1, 0.2, 0.3, 0.1] * 3, np.float32))
    copied = {d.member: d.opponent for d in population.evaluate([0, 1, 2]) if d.copy}
    assert copied, "nothing was copied, so nothing is tested"
    assert population.ancestors == [copied.get(member, member) for member in range(3)]
    assert [scores == [] for scores in population.scores()] == [member in copied for member in range(3)]
    assert population.episodes == [15, 15, 15]


def test_recorded_scores_are_exact_and_short() -> None:
    population = controller()
    values = np.array([0.1, 1 / 3, 1e-7, -2.5], np.float32)
    population.record(1, values)
    assert np.array_equal(np.array(population.scores()[1], np.float32), values)
    assert all(len(json.dumps(x)) <= 13 for x in population.scores()[1])


def test_returns_that_are_no_numbers_are_counted_and_have_no_score() -> None:
    population = controller()
    population.record(1, np.array([1.0, np.nan, np.inf, 2.0], np.float32))
    assert population.episodes[1] == 4
    assert population.scores()[1] == [1.0, 2.0]
    state = population.state_dict()
    state["windows"][1] = np.array([1.0, np.nan])  # as older runs have it
    population.load_state_dict(state)
    assert population.scores()[1] == [1.0]


@pytest.mark.parametrize("scheme", ["lp-rnn", "truncation"])
def test_a_restored_controller_decides_as_the_first_one(scheme: str) -> None:
    def play(population: PopulationController, rounds: range) -> list[object]:
        seen: list[object] = []
        for k in rounds:
            for member in range(3):
                population.record(member, np.array(returns(10 * k + member, 0.4 * member, 0.3, 5), np.float32))
            if due := population.due(range(3)):
                seen.append(population.evaluate(due))
        return seen

    first, second = controller(scheme=scheme, explore=EXPLORE), controller(scheme=scheme, explore=EXPLORE)
    play(first, range(5))
    second.load_state_dict(first.state_dict())
    later = play(first, range(5, 15))
    assert len(later) >= 4
    assert later == play(second, range(5, 15))
    assert first.values == second.values
    assert first.ancestors == second.ancestors
