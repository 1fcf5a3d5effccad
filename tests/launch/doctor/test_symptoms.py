"""rl-doctor RUN: made rows with one fault each, and a real run with settings that cannot learn."""

import json
from pathlib import Path

import pytest

from engram.agents.config import AgentConfig
from engram.launch.config.run_config import RunConfig
from engram.launch.doctor.command import symptoms
from engram.launch.entry import rl_doctor as doctor
from engram.launch.metrics.rows import Row, read_log
from engram.launch.train import command as train
from engram.learners.config import LearnerConfig

CONFIG = RunConfig(local=True)


def healthy(number: int = 40) -> list[Row]:
    """Rows of a run that learns."""
    return [
        {
            "step": 1000.0 * (i + 1),
            "loss/policy": 0.1,
            "loss/value": 0.2,
            "loss/entropy": -0.01,
            "policy/entropy": 1.38 - 0.02 * i,
            "learner/grad_norm": 0.5,
            "learner/skipped": 0.0,
            "perf/policy_lag": 1.0,
            "episode/return": 0.1 * i,
            "episode/length": 20.0,
        }
        for i in range(number)
    ]


def said(rows: list[Row], config: RunConfig = CONFIG) -> dict[str, str]:
    """Symptoms and the advice."""
    return {each.what: each.advice for each in symptoms(rows, config) if each.verdict != "ok"}


def test_a_run_that_learns_has_no_symptom() -> None:
    assert said(healthy()) == {}
    assert "no problems found" in symptoms(healthy(), CONFIG)[0].found
    assert "at least 8 are needed" in symptoms(healthy(5), CONFIG)[0].found


def test_a_run_that_predicts_is_not_told_to() -> None:
    flat = [row | {"episode/return": 1.0} for row in healthy()]
    config = RunConfig(local=True, agent=AgentConfig(prediction_size=8))
    assert said(flat, config)["return"] == "see the other lines; else more steps, or an easier environment first"


@pytest.mark.parametrize(
    ("name", "value", "what", "flag"),
    [
        ("policy/entropy", 1.38, "entropy", "--lr"),
        ("learner/grad_norm", 25.0, "gradient", "--max-grad-norm 50"),
        ("learner/skipped", 3.0, "updates", "--lr"),
        ("perf/policy_lag", 4.5, "policy lag", "--max-lag 1"),
        ("episode/return", 1.0, "return", "else --prediction-size 128, more steps, or an easier environment"),
    ],
)
def test_each_fault_has_its_flag(name: str, value: float, what: str, flag: str) -> None:
    rows = [row | {name: value} | ({"episode/return": 1.0} if name == "policy/entropy" else {}) for row in healthy()]
    found = said(rows)
    assert flag in found[what]
    assert set(found) <= {what, "return"}, "no other complaint"


def test_a_large_value_loss_is_a_fault_where_it_fills_the_clipped_gradient() -> None:
    large = [row | {"loss/value": 30.0} for row in healthy()]
    assert said(large) == {}
    clipped = [row | {"learner/grad_norm": 4.0 * (i % 3 > 0)} for i, row in enumerate(large)]
    assert said(clipped)["value loss"] == "--normalize-returns, or --max-grad-norm 8, or --value-cost 0.025"


def test_a_large_value_loss_is_a_fault_where_nothing_is_clipped() -> None:
    large = [row | {"loss/value": 30.0} for row in healthy()]
    free = RunConfig(local=True, learner=LearnerConfig(max_grad_norm=0.0))
    assert said(large, free)["value loss"] == "--normalize-returns, or --value-cost 0.025"
    unknown = [{name: x for name, x in row.items() if name != "learner/grad_norm"} for row in large]
    assert said(unknown)["value loss"] == "--normalize-returns, or --value-cost 0.025"


def test_a_clipped_gradient_of_the_prediction_names_its_cost() -> None:
    rows = [row | {"learner/grad_norm": 25.0, "loss/prediction": 0.4} for row in healthy()]
    assert said(rows)["gradient"] == "--max-grad-norm 50, or a lower --prediction-cost"


def test_entropy_that_is_gone() -> None:
    rows = [row | {"episode/return": 1.0, "policy/entropy": 1.3 if i < 10 else 0.01} for i, row in enumerate(healthy())]
    assert "--entropy-cost" in said(rows)["entropy"]
    solved = [row | {"episode/solved": 0.97} for row in rows]
    assert said(solved) == {}, "a policy that solves the environment may be certain"


def test_episodes_that_never_end() -> None:
    rows = [{k: v for k, v in row.items() if not k.startswith("episode/")} for row in healthy()]
    assert "step limit" in said(rows)["episodes"]


def test_a_learner_that_waits() -> None:
    rows = [row | {"perf/queue_wait": 0.8} for row in healthy()]
    assert said(rows) == {}, "in one process the actors work while the learner waits"
    assert "--num-actors 2" in said(rows, RunConfig())["learner"]


def test_rows_that_are_no_rows_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    good = json.dumps({"step": 3, "time": 1.0, "wall_s": 1.0, "metrics": {"a": 1.5, "b": None, "c": "x"}})
    file.write_text(f'{good}\nnull\n[1]\n{{"step": "x", "metrics": {{}}}}\n{"[" * 100_000}\n{{"step": 4')
    assert read_log(file) == [{"step": 3, "time": 1.0, "wall_s": 1.0, "a": 1.5}]


def test_a_real_run_with_silly_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    words = ["--env", "CartPole-v1", "--core", "feedforward", "--local", "--algorithm", "vtrace", "--lr", "1e-7"]
    words += [
        "--max-grad-norm",
        "0.01",
        "--value-cost",
        "5",
        "--envs-per-update",
        "8",
        "--unroll-length",
        "10",
        "--no-normalize-returns",
    ]
    assert train.main([*words, "--total-steps", "4000", "--log-every", "160", "--run-dir", str(path)]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        doctor([str(path), "--json"])
    assert stop.value.code == 1
    found = {each["what"]: each["advice"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert {"value loss", "gradient", "entropy"} <= found.keys()
    with pytest.raises(SystemExit) as stop:
        doctor([str(path)])
    assert "--max-grad-norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/such"], "contains no run"),
        (["x", "--seed", "3"], "'--seed' cannot be combined with the run directory 'x'"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        doctor(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
