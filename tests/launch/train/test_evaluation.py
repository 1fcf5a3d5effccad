"""`--eval-every`: rows with eval/*, the best checkpoint by them, and a training that does not notice."""

from pathlib import Path

import pytest

from engram.launch.train import command
from engram.learners import checkpoints
from runs import TINY
from runs import rows as written

WORDS = [*TINY, "--sync", "--local", "--lr-schedule", "constant"]
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


def test_the_best_checkpoint_is_that_of_the_highest_evaluation(tmp_path: Path) -> None:
    found = train(tmp_path / "run", EVALUATED, 288)
    newest = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    state = checkpoints.load(newest)
    last = [row["eval/return"] for row in found if "eval/return" in row][-1]
    assert state["best"][0] == pytest.approx(last)
    assert state["members"][0]["evaluated"] == last
