"""Runs from before previous rewards were unclipped keep the input that they learned with when they are resumed."""

import re
from pathlib import Path

from engram.launch.runs.directory import RunDirectory
from engram.launch.runs.trained import run_config
from engram.launch.train import command


def test_a_resumed_run_keeps_its_clipped_previous_reward(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["--env", "CartPole-v1", "--core", "lstm", "--core-args", "hidden_size=4", "--local", "--previous-reward"]
    words += ["--previous-reward-clip", "1", "--envs-per-actor", "2", "--envs-per-update", "2", "--unroll-length", "4"]
    assert command.main([*words, "--total-steps", "16", "--run-dir", str(run)]) == 0
    file = run / "config.toml"
    older = re.sub(r"previous_reward_clip = 1.0\n", "", text := file.read_text())
    assert older != text
    file.write_text(older)
    assert command.main(["--resume", str(run), "--total-steps", "32"]) == 0
    assert run_config(RunDirectory.open(run, lock=False)).agent.previous_reward_clip == 1
    assert "previous_reward_clip = 1.0" in file.read_text()
    assert (run / "checkpoints" / "step-000000000032").is_dir()
