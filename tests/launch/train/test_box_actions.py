"""An environment of real actions through the commands: trained, resumed to the bit, evaluated."""

from pathlib import Path

import torch

from engram.launch.evaluate import command as evaluate
from engram.launch.train import command as train
from engram.learners import checkpoints

WORDS = [
    *("--env", "Pendulum-v1", "--env-args", "max_episode_steps=15", "--core", "gru", "--core-args", "hidden_size=8"),
    *("--embedding-size", "4", "--envs-per-actor", "3", "--unroll-length", "8", "--lr-schedule", "constant", "--local"),
]


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    return checkpoints.load(newest)["members"][0]["learner"]["agent"]


def test_trains_resumes_exactly_and_is_evaluated(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.main([*WORDS, "--total-steps", "200", "--run-dir", str(whole)])
    train.main([*WORDS, "--total-steps", "100", "--run-dir", str(parts)])
    train.main(["--resume", str(parts), "--total-steps", "200", "--trust-checkpoint"])
    found, expected = weights(parts), weights(whole)
    assert expected["log_deviation"].any()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert evaluate.main([str(whole), "--episodes", "3", "--greedy"]) == 0
