"""Training runs that tests of several commands share. They are for reading: copy one to change it."""

import shutil
from pathlib import Path

import pytest

from engram.launch.train import command as train
from runs import TINY


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates of a GRU in a small T-maze."""
    path = tmp_path_factory.mktemp("finished") / "run"
    words = ["--env", "t-maze", "--core", "gru", "--core-args", "hidden_size=8", "--local", "--run-dir", str(path)]
    words += ["--env-args", "difficulty=0", "half_width=4", "limbo_time=4", "teleport_delay=2", "timeout_frames=20"]
    words += ["--conv-channels", "--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "10"]
    assert train.main([*words, "--total-steps", "80"]) == 0
    return path


@pytest.fixture(scope="session")
def population_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population of three members that were compared and copied."""
    path = tmp_path_factory.mktemp("population") / "run"
    words = ["--env", "pomdp-graph", "--core", "lstm", "--core-args", "hidden_size=8", "--local", "--seed", "3"]
    words += ["--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "10", "--log-every", "200"]
    words += ["--population", "3", "--pbt.warmup", "8", "--pbt.interval", "8", "--pbt.window", "5", "--pbt.p-value"]
    words += ["0.6", "--pbt.explore", "learner.lr=loguniform(1e-4,1e-2)", "--total-steps", "1500"]
    assert train.main([*words, "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synchronous run of 60 steps with the settings of TINY."""
    path = tmp_path_factory.mktemp("sync") / "run"
    words = [*TINY, "--local", "--sync", "--lr-schedule", "constant", "--total-steps", "60", "--run-dir", str(path)]
    assert train.main(words) == 0
    return path


@pytest.fixture
def run(sync_run: Path, tmp_path: Path) -> Path:
    """A copy of `sync_run` to resume."""
    return Path(shutil.copytree(sync_run, tmp_path / "run"))
