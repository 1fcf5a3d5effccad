"""A checkpoint or a configuration from elsewhere may do nothing without being asked for, and said."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engram.base.errors import EngramError
from engram.launch.evaluate.command import main as evaluate
from engram.launch.insight.command import main as look
from engram.launch.runs.directory import refuse_inside
from engram.launch.runs.trained import drop_code
from engram.launch.train import command as train
from engram.learners import checkpoints

TINY = [
    *("--env", "CartPole-v1", "--core", "gru", "--core-args", "hidden_size=8", "--local", "--seed", "5", "--sync"),
    *(
        "--envs-per-actor",
        "2",
        "--envs-per-update",
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


OLD_RUN = Path(__file__).parents[2] / "fixtures" / "run-4d2bf2e"
"""A finished run of Cued Catch with an LSTM."""


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def trained_weights(run: Path) -> dict[str, np.ndarray]:
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    return checkpoints.load(newest)["members"][0]["learner"]["agent"]


@pytest.mark.integration
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


def test_a_mixture_of_environments_saved_as_code_is_recognized() -> None:
    saved = {"actors": [{0: {"batch": {"parts": [{"pickled": np.zeros(1, np.uint8)}]}}}]}
    assert drop_code(saved)
    assert not saved


@pytest.mark.integration
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
        with pytest.raises(EngramError, match=r"'getoutput' is no environment; expected a subclass of gymnasium\.Env"):
            call()
    assert not mark.exists()


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory in the working directory, with a module that leaves a mark when it is imported."""
    run = tmp_path / "loot"
    shutil.copytree(OLD_RUN, run)
    (run / "module.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as every command appends it
    return run


def name_module(run: Path, setting: str, module: str = "loot.module") -> None:
    """Let a setting of a run's configuration name a class of the module."""
    config = (run / "config.toml").read_text()
    old = {"env": "cued-catch", "core": "lstm", "algorithm": "vtrace"}[setting]
    assert f'{setting} = "{old}"' in config
    (run / "config.toml").write_text(config.replace(f'{setting} = "{old}"', f'{setting} = "{module}:X"'))


@pytest.mark.parametrize("setting", ["env", "core", "algorithm"])
def test_no_module_in_a_run_directory_is_imported(hostile: Path, setting: str) -> None:
    name_module(hostile, setting)
    for call in (
        lambda: evaluate(["loot", "--episodes", "1"]),
        lambda: look(["loot"]),
        lambda: run_train("--resume", "loot", "--total-steps", 800, "--local"),
        lambda: run_train("--config", "loot/config.toml", "--run-dir", "new"),
        lambda: run_train("--resume", f"file://{hostile}", "--run-dir", "new"),
    ):
        with pytest.raises(EngramError, match=rf"{setting} is 'loot\.module:X', which is .*loot/module\.py"):
            call()
    assert not Path("mark").exists()
    assert not Path("new").exists()


def test_neither_links_nor_packages_nor_checkpoints_lead_to_a_module_in_a_run_directory(hostile: Path) -> None:
    Path("link").symlink_to(hostile)
    (hostile / "package").mkdir()
    (hostile / "package" / "__init__.py").touch()
    (hostile / "elsewhere.py").symlink_to(__file__)
    for module in ("loot.module", "link.module", "loot.package", "loot.package.more", "loot.elsewhere"):
        with pytest.raises(ValueError, match="modules in a run directory are not imported"):
            refuse_inside({"agent": {"torso": [f"{module}:X"]}}, Path("link"))
    refuse_inside({"env": "loot.missing:X", "core": "json:X", "name": "loot.module"}, hostile)
    refuse_inside({"env": "loot.module:X"}, hostile / "checkpoints")
    checkpoint = hostile / "checkpoints" / "step-000000000400"
    state = json.loads((checkpoint / "state.json").read_text())
    state["state"]["config"] = {"learner": {"algorithm": "loot.module:X"}}
    rewrite(checkpoint / "state.json", json.dumps(state).encode())
    with pytest.raises(EngramError, match=r"learner\.algorithm is 'loot\.module:X'"):
        evaluate(["loot", "--checkpoint", "step-400", "--episodes", "1"])
    assert not Path("mark").exists()


def rewrite(file: Path, content: bytes) -> None:
    """Replace a file of a checkpoint, and its checksum."""
    sums = file.parent / "SHA256SUMS"
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(content)
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(content).hexdigest()))


def test_a_configuration_file_of_ones_own_may_lie_beside_its_modules(hostile: Path, capsys: Any) -> None:
    Path("config.toml").write_text('env = "mine:Missing"\n')
    Path("mine.py").write_text("open('mark', 'w')\n")
    with pytest.raises(EngramError, match="no 'Missing'"):
        run_train("--config", "config.toml", "--run-dir", "new", "--local", "--total-steps", 10)
    assert Path("mark").exists()
