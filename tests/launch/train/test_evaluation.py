"""`--eval-every`: rows with eval/*, the best checkpoint by them, and a training that does not notice."""

from pathlib import Path
from typing import Any

import pytest

from engram.launch.metrics import evaluator
from engram.launch.runs import saved
from engram.launch.runs.saved import Best
from engram.launch.train import command
from engram.learners import checkpoints
from runs import TINY
from runs import rows as written

WORDS = [*TINY, "--sync", "--local", "--lr-schedule", "constant"]
CATCH = ["--env", "cued-catch", "--core", "lstm", "--env-args", "num_trials=2", "reward_free_trials=0"]
EVALUATED = [*WORDS, "--eval-every", "72", "--eval-episodes", "6"]


def train(path: Path, words: list[str], steps: int) -> list[dict[str, float]]:
    """Metrics of a run by step, without what a clock says."""
    command.main([*words, "--total-steps", str(steps), "--run-dir", str(path)])
    return rows(path)


def rows(path: Path) -> list[dict[str, float]]:
    found = written(path)
    return [{"step": row["step"]} | {k: v for k, v in row["metrics"].items() if k[:5] != "perf/"} for row in found]


def without(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in metrics]


def test_training_is_the_same_with_and_without_and_resumes_exactly(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", WORDS, 288)
    whole = train(tmp_path / "whole", EVALUATED, 288)
    assert without(whole) == plain
    evaluated = [row for row in whole if "eval/return" in row]
    assert 3 <= len(evaluated) < len(whole)
    assert all(0 <= row["eval/solved"] <= 1 and row["eval/length"] >= 1 for row in evaluated)
    train(tmp_path / "parts", EVALUATED, 144)
    command.main(["--resume", str(tmp_path / "parts"), "--total-steps", "288"])
    kept = {row["step"]: row for row in rows(tmp_path / "parts")}
    assert [kept[row["step"]].get("eval/return") for row in evaluated] == [row["eval/return"] for row in evaluated]


def test_the_best_checkpoint_holds_the_weights_of_the_highest_evaluation(tmp_path: Path) -> None:
    found = train(tmp_path / "run", [*EVALUATED, *CATCH, "--checkpoint-every", "1e9"], 720)
    evaluated = {row["step"]: row["eval/return"] for row in found if "eval/return" in row}
    assert len(set(evaluated.values())) > 1
    newest = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    best = saved.read(newest)["best"]
    assert best.mean == max(evaluated.values())
    assert evaluated[best.step] == best.mean
    held = checkpoints.load(checkpoints.path_of(tmp_path / "run" / "checkpoints", best.step))
    assert held["members"][0]["evaluated"] == best.mean
    assert held["members"][0]["evaluated_version"] == held["members"][0]["learner"]["updates"]


def test_an_evaluation_is_the_best_one_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of the other members change nothing about it, and ask for no checkpoint."""
    found: list[tuple[int, int]] = []
    """Of every checkpoint the best member, and which of its weights were evaluated."""
    save = checkpoints.save

    def note(folder: Path, step: int, state: dict[str, Any]) -> Path:
        member = state["best"].member
        found.append((member, state["members"][member]["evaluated_version"]))
        return save(folder, step, state)

    monkeypatch.setattr(checkpoints, "save", note)
    words = [*EVALUATED, *CATCH, "--checkpoint-every", "1e9", "--population", "4"]
    assert command.main([*words, "--total-steps", "288", "--run-dir", str(tmp_path / "run")]) == 0
    assert found
    assert len(set(found)) >= len(found) - 1, "and one more at the end"


def test_a_run_that_begins_to_be_evaluated_has_a_new_best(tmp_path: Path) -> None:
    train(tmp_path / "run", WORDS, 144)
    newest = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    state = checkpoints.load(newest)
    step = checkpoints.step_of(newest)
    checkpoints.save(newest.parent, step + 1, state | {"best": Best(1e9, step, 0, 1000, 0.1)})
    command.main(["--resume", str(tmp_path / "run"), "--total-steps", "288", "--eval-every", "72"])
    after = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert after is not None
    assert saved.read(after)["best"].mean < 1e9


def test_a_policy_that_ends_no_episode_is_not_evaluated_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluator, "MOST_EVALUATION_STEPS", 1)
    found = train(tmp_path / "run", [*EVALUATED, "--env-args", "max_steps=60"], 144)
    assert not any("eval/return" in row for row in found)
    assert "no evaluation at step" in "".join(capfd.readouterr())
