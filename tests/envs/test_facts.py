"""Facts of level and moment: named values inside their range, and true where the level or the observation says so."""

from typing import Any

import numpy as np
import pytest

from engram.envs.registration import make_batch

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "t-maze": {"difficulty": 0, "half_width": 4, "limbo_time": 5, "teleport_delay": 3, "timeout_frames": 60},
    "cued-catch": {"num_trials": 6, "reward_free_trials": 2, "cue_duration": 3},
    "sequence-recall": {"demo_light_on_frames": 3, "demo_light_off_frames": 2, "timeout_frames": 80},
    "boxworld": {"path_lengths": 2, "num_distractors": 1, "grid_size": 8},
    "pomdp-graph": {},
    "maze": {"size": 5, "num_steps": 90},
    "mini-pacman": {"frame_cap": 90},
}
N, STEPS = 6, 200


def played(environment: str) -> list[tuple[Any, dict[str, Any], Any]]:
    """Observation, facts and levels at every step of random play."""
    batch = make_batch(environment, N, 0, **ENVIRONMENTS[environment])
    rng = np.random.default_rng(0)
    observation, _ = batch.reset(seed=1)
    found = []
    for _ in range(STEPS):
        found.append((observation, batch.facts(), [batch.level(i) for i in range(N)]))
        observation, *_ = batch.step(rng.integers(batch.single_action_space.n, size=N))
    return found


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_facts_are_those_that_are_named_and_in_their_range(environment: str) -> None:
    names = make_batch(environment, N, 0, **ENVIRONMENTS[environment]).fact_values
    for _, facts, _ in played(environment):
        assert set(facts) == set(names)
        for name, values in facts.items():
            assert values.shape == (N,)
            assert values.dtype == np.int64
            assert values.min() >= 0
            assert not names[name] or values.max() < len(names[name])


def test_t_maze() -> None:
    places = set()
    for observation, facts, levels in played("t-maze"):
        places |= set(facts["place"])
        assert facts["goal"].tolist() == [level["goal"] for level in levels]
        shown = observation[:, 4:7, :, 3].any((1, 2))  # the plane of the cue
        np.testing.assert_array_equal(facts["cue"] == 1, shown)
    assert places == {0, 1, 2}


def test_cued_catch() -> None:
    for observation, facts, levels in played("cued-catch"):
        for i, level in enumerate(levels):
            assert [facts[f"ball_{k}"][i] for k in range(1, 5)] == level["balls"]
            assert level["balls"][facts["cue"][i]] == facts["ball"][i]
            shown = [k for k in range(4) if observation[i, 5:7, 3 * k : 3 * k + 2, 2].all()]
            assert shown in ([], [facts["cue"][i]])


def test_sequence_recall() -> None:
    phases = set()
    for observation, facts, levels in played("sequence-recall"):
        for i, level in enumerate(levels):
            assert [facts[f"light_{k}"][i] for k in range(1, 5)] == level["sequence"]
            lit = [k + 1 for k in range(4) if observation[i, ..., 2 + k].any()]
            assert lit == [facts["lit"][i]] if facts["lit"][i] else not lit
        phases |= set(facts["phase"])
    assert phases == {0, 1}


def test_boxworld() -> None:
    keys = set()
    for _, facts, levels in played("boxworld"):
        for i, level in enumerate(levels):
            held = level["board"][0][0]
            assert facts["key"][i] == ("abcdefghijklmnopqrst".index(held) + 1 if held in "abcdefghijklmnopqrst" else 0)
            assert facts["locks"][i] == len(level["solution_locks"])
        keys |= set(facts["key"] > 0)
    assert keys == {False, True}


def test_pomdp_graph() -> None:
    for observation, facts, levels in played("pomdp-graph"):
        for i, level in enumerate(levels):
            for s, a in np.ndindex(5, 3):
                edge = level["adjacency"][a][s]
                assert facts[f"from_{'ABCDE'[s]}_by_{a}"][i] == (edge.index(1) if any(edge) else 5)
        seen = np.concatenate([observation[:, :5], observation[:, 5:10]]).argmax(1)
        assert sorted(seen) == sorted(np.concatenate([facts["goal"], facts["agent"]]))


def test_maze() -> None:
    found = set()
    for observation, facts, levels in played("maze"):
        assert [(r, c) for r, c in zip(facts["goal_row"], facts["goal_column"], strict=True)] == [
            level["goal"] for level in levels
        ]
        at_goal = (facts["row"] == facts["goal_row"]) & (facts["column"] == facts["goal_column"])
        assert not (at_goal & (observation[:, 10] == 10)).any() or facts["found"][at_goal].all()
        assert facts["found"][observation[:, 10] == 10].all()  # the reward of the goal is seen at once
        found |= set(facts["found"])
    assert found == {0, 1}


def test_mini_pacman() -> None:
    batch = make_batch("mini-pacman", N, 0, view="full", frame_cap=90)
    rng = np.random.default_rng(0)
    observation, _ = batch.reset(seed=1)
    powered = set()
    for _ in range(STEPS):
        facts = batch.facts()
        for i in range(N):
            red, green, blue = np.moveaxis(observation[i].astype(int), 2, 0)
            pacman = np.argwhere((green == 255) & (red == 0) & (blue == 0))
            assert [facts["row"][i], facts["column"][i]] in pacman.tolist()
            assert 0 <= facts["food"][i] <= 138
        powered |= set(facts["powered"])
        observation, *_ = batch.step(rng.integers(5, size=N))
    assert powered == {0, 1}
