"""A checkpoint or a configuration from elsewhere may do nothing without being asked for, and said."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from engram.launch.evaluate.command import main as evaluate
from engram.launch.run.command_line import UsageError
from engram.launch.run.imports import announce_imports, named_modules
from engram.launch.train import command as train
from engram.learners import checkpoints

TINY = [
    *("--env", "CartPole-v1", "--core", "gru", "--core-args", "hidden_size=8", "--local", "--seed", "5", "--sync"),
    *(
        "--envs-per-actor",
        "2",
        "--batch-size",
        "2",
        "--unroll-length",
        "8",
        "--log-every",
        "1",
        "--embedding-size",
        "8",
    ),
    *("--lr-schedule", "constant", "--preset", "paper"),
]


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def trained_weights(run: Path) -> dict[str, np.ndarray]:
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    return checkpoints.load(newest)["members"][0]["learner"]["agent"]


def test_environments_saved_as_code_are_resumed_exactly_when_trusted_only(tmp_path, capfd):
    for name in ("plain", "trusted"):
        assert run_train(*TINY, "--total-steps", 64, "--run-dir", tmp_path / name) == 0
    capfd.readouterr()
    assert run_train("--resume", tmp_path / "plain", "--total-steps", 128) == 0
    said = capfd.readouterr()
    assert "environments start new episodes: their saved state is code, which only --trust-checkpoint runs" in (
        said.out + said.err
    )
    assert run_train("--resume", tmp_path / "trusted", "--total-steps", 128, "--trust-checkpoint") == 0
    assert "start new episodes" not in "".join(capfd.readouterr())
    assert run_train(*TINY, "--total-steps", 128, "--run-dir", tmp_path / "whole") == 0
    weights = {name: trained_weights(tmp_path / name) for name in ("whole", "trusted", "plain")}
    assert all(np.array_equal(weights["trusted"][key], weights["whole"][key]) for key in weights["whole"])
    assert not all(np.array_equal(weights["plain"][key], weights["whole"][key]) for key in weights["whole"])


def test_no_function_that_a_configuration_names_is_called(tmp_path):
    run, mark = tmp_path / "run", tmp_path / "mark"
    assert run_train(*TINY, "--total-steps", 32, "--run-dir", run) == 0
    config = (run / "config.toml").read_text().replace('env = "CartPole-v1"', 'env = "subprocess:getoutput"')
    config = config.replace("[env_args]", f'[env_args]\ncmd = "touch {mark}"')
    (run / "config.toml").write_text(config)
    for call in (
        lambda: run_train("--resume", run, "--total-steps", 64),
        lambda: run_train("--config", run / "config.toml", "--run-dir", tmp_path / "new"),
        lambda: evaluate([str(run), "--episodes", "1"]),
    ):
        with pytest.raises(UsageError, match=r"'getoutput' is a function; expected a subclass of gymnasium\.Env"):
            call()
    assert not mark.exists()


def test_imports_of_a_configuration_from_elsewhere_are_announced(tmp_path, capsys):
    file = tmp_path / "config.toml"
    file.write_text("")
    config = {"env": "my_worlds:World", "agent": {"core": "gru"}, "learner": {"algorithm": "other:Algorithm"}}
    assert named_modules(config) == ["env = my_worlds:World", "algorithm = other:Algorithm"]
    announce_imports(config, file)
    assert capsys.readouterr().err == ""
    announce_imports(config, file, fetched=True)
    said = capsys.readouterr().err
    assert f"{file} was fetched; it imports modules found on this machine: env = my_worlds:World, algorithm" in said
    announce_imports({"env": "maze", "agent": 3}, file, fetched=True)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give a file away")
def test_a_run_of_another_user_says_what_it_imports(tmp_path, capsys):
    from engram.launch.run.run_directory import RunDirectory

    file = tmp_path / "config.toml"
    file.write_text('env = "my_worlds:World"\n')
    os.chown(file, 12345, 12345)
    RunDirectory(tmp_path).config()
    assert "belongs to another user; it imports modules found on this machine: env = my_worlds:World" in (
        capsys.readouterr().err
    )
    assert "my_worlds" not in sys.modules
