"""A foreign environment's last `info` of an episode: into the columns of episodes, and to rl-eval."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.envs.foreign import ForeignBatch
from engram.envs.foreign.values import read_infos as read
from engram.launch.evaluate import command as evaluate
from engram.launch.train import command
from engram.learners import checkpoints
from runs import rows


class Told(gymnasium.Env):
    """Ends after three steps; every second episode of a copy, from its seed on, is a success and tells a score."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    episode_fields = ("score", "kind")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time, self.success = 0, bool(self.np_random.integers(2)) if seed is not None else not self.success
        return np.zeros(2, np.float32), {"is_success": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.time += 1
        over = self.time == 3
        info: dict[str, Any] = {"is_success": True, "kind": "a word", "score": 0, "place": [1, 2]}
        if over:
            info = info | {"score": 0.25} if self.success else {"is_success": np.bool_(False)}
        return np.zeros(2, np.float32), 1.0, over, False, info


class Silent(Told):
    """Declares nothing and says nothing."""

    episode_fields = ()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return *super().step(action)[:4], {}


class Wrong(Told):
    """Declares a word in place of names."""

    episode_fields = "score"  # type: ignore[assignment]


class Taken(Told):
    """Declares what every environment has."""

    episode_fields = ("score", "length")


def trained(environment: str, path: Path, *words: str) -> Path:
    words = (
        "--env",
        f"{__name__}:{environment}",
        "--core",
        "gru",
        "--core-args",
        "hidden_size=4",
        "--algorithm",
        "a2c",
        "--local",
        *words,
    )
    sizes = ["--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "10", "--log-every", "40"]
    assert command.main([*words, *sizes, "--num-actors", "1", "--total-steps", "80", "--run-dir", str(path)]) == 0
    return path


def evaluated(run: Path) -> dict[str, Any]:
    file = run.parent / "found.json"
    assert evaluate.main([str(run), "--episodes", "8", "--json", str(file)]) == 0
    return json.loads(file.read_text())["all"]


def test_the_last_step_of_each_episode_is_told_and_what_is_missing_is_nan():
    batch = ForeignBatch(Told, 3, name="told")
    assert batch.episode_fields == ("solved", "score", "kind")
    observation, n = batch.new_observation(), 3
    reward, terminated, truncated = np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(observation, 1)
    seen = []
    for _ in range(7):
        batch.step_into(np.zeros(n, np.int64), observation, reward, terminated, truncated)
        if terminated.any():
            seen.append(batch.episode_facts(np.array([0, 2])))
    assert [facts.dtype for facts in seen] == [np.float32] * 2
    solved = seen[0][:, 0]
    assert set(solved) <= {0, 1}
    for facts, expected in zip(seen, (solved, 1 - solved), strict=True):
        columns = (expected, np.where(expected == 1, 0.25, np.nan), np.full(2, np.nan))
        np.testing.assert_array_equal(facts, np.stack(columns, 1))
    assert batch.episode_facts(np.array([], np.int64)).shape == (0, 3)


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 1), (np.bool_(False), 0), (np.int8(3), 3), (np.array(2.5), 2.5), (7, 7), (-0.5, -0.5)]
    + [(each, np.nan) for each in ("7", None, [1], np.ones(2), {}, 10**400, 1e300, np.inf, np.nan, 1j)],
)
def test_only_single_finite_numbers_count(value: Any, number: float):
    np.testing.assert_array_equal(read([{"x": value}], ("x",)), [[number]])


@pytest.mark.parametrize(
    ("info", "solved"),
    [
        ({"solved": 1}, 1),
        ({"success": 1.0}, 1),
        ({"is_success": False}, 0),
        ({"is_success": np.array([True])}, 1),
        ({"success": 0.4}, 0),
        ({"success": -1}, 0),
        ({}, np.nan),
        ({"solved": None}, np.nan),
        ({"solved": 0, "success": 1}, 0),
    ],
)
def test_solved_under_its_usual_names(info: dict[str, Any], solved: float):
    np.testing.assert_array_equal(read([info], ("solved",)), [[solved]])


@pytest.mark.parametrize(
    ("environment", "said"), [(Wrong, "episode_fields is 'score'"), (Taken, "than return, length")]
)
def test_a_declaration_that_is_none_is_named(environment: type[Told], said: str):
    with pytest.raises(ValueError, match=said):
        ForeignBatch(environment, 1, name="told")


def test_a_wrapper_shows_what_the_environment_declares():
    batch = ForeignBatch(lambda: gymnasium.wrappers.TimeLimit(Told(), 2), 1, name="told")
    assert batch.episode_fields == ("solved", "score", "kind")


@pytest.mark.integration
def test_a_run_its_evaluations_and_rl_eval_show_them_and_go_on(tmp_path: Path):
    run = trained("Told", tmp_path / "run", "--eval-every", "40", "--eval-episodes", "8")
    metrics = [row["metrics"] for row in rows(run)]
    assert 0 < max(each["episode/solved"] for each in metrics) < 1
    assert {each["episode/score"] for each in metrics if "episode/score" in each} == {0.25}
    assert not any("kind" in name for each in metrics for name in each)
    last = [each for each in metrics if "eval/solved" in each][-1]
    assert 0 < last["eval/solved"] < 1
    assert last["eval/score"] == 0.25
    found = evaluated(run)
    assert 0 < found["solved"]["mean"] < 1
    assert found["score"]["mean"] == 0.25
    assert "kind" not in found


@pytest.mark.integration
def test_a_run_from_before_there_were_fields_goes_on(tmp_path: Path):
    run = trained("Silent", tmp_path / "run")
    assert not any("solved" in name for row in rows(run) for name in row["metrics"])
    assert set(evaluated(run)) == {"episodes", "return", "length"}
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    state = checkpoints.load(newest)
    old = state["members"][0]["accumulator"]
    del old["names"], old["known"]
    old["episodes"], old["window"] = old["episodes"][:2], [row[:2] for row in old["window"]]
    checkpoints.save(newest.parent, state["members"][0]["learner"]["steps"], state)
    assert command.main(["--resume", str(run), "--total-steps", "160"]) == 0
    assert rows(run)[-1]["step"] >= 160
