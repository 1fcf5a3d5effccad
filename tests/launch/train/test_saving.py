"""Checkpoints of a run: what is kept, what is noted, what is said when something cannot be written."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engram.actors.pool import ActorFailureError
from engram.base.errors import EngramError
from engram.launch.config.plain import from_dict, to_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.accumulator import Accumulator, Settled
from engram.launch.runs import saved
from engram.launch.runs.directory import RunDirectory, resume_command
from engram.launch.train import command as train
from engram.launch.train.trainer import Trainer
from engram.learners import checkpoints
from engram.learners.learner import Learner
from runs import TINY, rows, steps_saved

LOCAL = [*TINY, "--local", "--lr-schedule", "constant"]


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def newest(run: Path) -> dict[str, Any]:
    path = checkpoints.latest(run / "checkpoints")
    assert path is not None
    return saved.read(path)


def seal(path: Path, change: Any) -> None:
    """Replace the state of a checkpoint by `change` of it, the checksums made again."""
    state = checkpoints.load(path)
    step = checkpoints.step_of(path)
    shutil.rmtree(path)
    checkpoints.save(path.parent, step, change(state))


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The mean returns that a run's checkpoints see, one after another; the last one stays."""
    given: list[float] = [0.0]
    monkeypatch.setattr(
        Accumulator, "settled", lambda _: Settled(given.pop(0) if len(given) > 1 else given[0], 1000, 0.1)
    )
    return given


@pytest.mark.parametrize("how", ["refused", "interrupted"])
def test_a_checkpoint_that_could_not_be_written_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: list[float], how: str
) -> None:
    """The real best one stays, whatever was noted of one that never came to be."""
    run = tmp_path / "run"
    returns[:] = [5.0, 9.0, 1.0]
    write, calls = checkpoints.save, [0]

    def full(folder: Path, step: int, state: dict[str, Any]) -> Path:
        calls[0] += 1
        if calls[0] == 2:
            raise checkpoints.CheckpointError("No space left on device")
        return write(folder, step, state)

    monkeypatch.setattr(checkpoints, "save", full)
    words = ["--total-steps", 200, "--checkpoint-every", 0, "--keep-checkpoints", 1, "--run-dir", run]
    assert run_train(*LOCAL, *words) == 0
    assert calls[0] > 4
    best = newest(run)["best"]
    assert best.mean == 5.0
    assert best.step == min(steps_saved(run))
    assert len(steps_saved(run)) == 2, "the best and the newest"
    if how == "interrupted":  # what the newest valid state names is there after any number of resumes
        assert run_train("--resume", run, "--total-steps", 300) == 0
        assert best.step in steps_saved(run)


def test_a_mean_that_is_no_number_is_never_the_best(tmp_path: Path, returns: list[float]) -> None:
    returns[:] = [math.nan, 2.0, math.nan, 1.0]
    words = ["--total-steps", 200, "--checkpoint-every", 0, "--run-dir", tmp_path / "run"]
    assert run_train(*LOCAL, *words) == 0
    assert newest(tmp_path / "run")["best"].mean == 2.0
    assert saved.Best(math.nan, 7, 0, 1000, 0.1).gives_way_to(-5.0, 0.1), "as older runs have it"


def test_saving_does_not_read_the_kept_checkpoints_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    verify = checkpoints.verify
    monkeypatch.setattr(checkpoints, "verify", lambda path: verified.append(path.name) or verify(path))
    words = [*LOCAL, "--checkpoint-every", 0, "--keep-checkpoints", 3, "--run-dir", tmp_path / "run"]
    assert run_train(*words, "--total-steps", 400) == 0
    assert len(steps_saved(tmp_path / "run")) == 3
    assert verified == []


def broken(call: int, error: type[BaseException]) -> Any:
    """A `Learner.learn` that makes half of an update in its `call`-th call and then raises."""
    learn, calls = Learner.learn, [0]

    def half(self: Learner, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == call:
            with torch.no_grad():
                next(self.agent.parameters()).fill_(7.0)
            self.steps += 1
            raise error
        learn(self, *arguments)

    return half


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_half_of_an_update_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(Learner, "learn", broken(4, error))
    words = [*LOCAL, "--total-steps", 400, "--checkpoint-every", 0, "--run-dir", run]
    if error is KeyboardInterrupt:
        assert run_train(*words) == 130
        assert f"continue with: {resume_command(run)}" in capsys.readouterr().out
    else:
        with pytest.raises(error):
            run_train(*words)
    state = newest(run)["members"][0]["learner"]
    assert state["updates"] == 3
    assert all((value != 7.0).any() for value in state["agent"].values())
    monkeypatch.undo()
    assert run_train("--resume", run) == 0


def test_an_actor_that_fails_between_updates_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, calls = Trainer._ready_batches, [0]  # pyright: ignore[reportPrivateUsage]

    def fail(self: Trainer) -> bool:
        calls[0] += 1
        if calls[0] == 4:
            raise ActorFailureError("once too often")
        return update(self)

    monkeypatch.setattr(Trainer, "_ready_batches", fail)
    assert run_train(*LOCAL, "--total-steps", 400, "--run-dir", tmp_path / "run") == 1
    assert newest(tmp_path / "run")["members"][0]["learner"]["updates"] == 3


def test_what_could_not_be_saved_is_said(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = steps_saved(run)[-1]

    def full(*_: Any) -> Path:
        raise checkpoints.CheckpointError("No space left on device")

    monkeypatch.setattr(checkpoints, "save", full)
    capsys.readouterr()
    assert run_train("--resume", run, "--total-steps", 120) == 3
    reached = rows(run)[-1]["step"]
    said = capsys.readouterr().out
    assert f"the last {reached - before:,} of them are not in any checkpoint of {run}" in said
    assert "everything is in" not in said
    assert f"rl-train --resume {run}" in said


# -- what resuming reads ----------------------------------------------------------------------------------------------


def files_of(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_resume_that_cannot_be_changes_nothing(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        (path / "tensors.pt").write_bytes(b"")
    before = files_of(run)
    with pytest.raises(EngramError, match="no intact checkpoint to resume from"):
        run_train("--resume", run, "--total-steps", 900)
    assert files_of(run) == before
    (run / "config.toml").write_text("")
    with pytest.raises(EngramError, match=r"config\.toml is damaged: it is empty"):
        run_train("--resume", run, "--total-steps", 900)
    assert (run / "config.toml").read_text() == ""


def test_a_time_limit_is_of_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert run_train(*LOCAL, "--total-steps", 10**9, "--time-limit", 0.001, "--run-dir", run) == 0
    assert "stopped (time limit)" in capsys.readouterr().out
    assert rows(run), "it counts from the first update, so there is one"
    reached = rows(run)[-1]["step"]
    assert run_train("--resume", run, "--total-steps", reached + 500) == 0
    assert f"continues from step {reached:,}" in capsys.readouterr().out
    assert rows(run)[-1]["step"] >= reached + 500


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three checkpoints, of which the first is the best."""
    run = tmp_path_factory.mktemp("three") / "run"
    with pytest.MonkeyPatch.context() as patch:
        given = [5.0, 1.0, 1.0]
        patch.setattr(Accumulator, "settled", lambda _: Settled(given.pop(0), 1000, 0.1))
        run_train(*LOCAL, "--total-steps", 60, "--run-dir", run)
        run_train("--resume", run, "--total-steps", 120)
        run_train("--resume", run, "--total-steps", 180)
    return run


def test_commands_that_read_a_run_pass_over_what_is_damaged(three: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(three, run)
    first, second, third = (run / "checkpoints" / f"step-{step:012d}" for step in steps_saved(run))
    (third / "state.json").write_bytes(b"{")
    assert train_checkpoint(run, "latest")[0] == second
    assert train_checkpoint(run, "best")[0] == first
    (first / "tensors.pt").write_bytes(b"")
    with pytest.raises(EngramError, match=f"{first.name}/tensors.pt: damaged"):
        train_checkpoint(run, "best")
    (second / "state.json").write_bytes(b"{")
    with pytest.raises(EngramError, match="has no intact checkpoint"):
        train_checkpoint(run, "latest")


def train_checkpoint(run: Path, which: str) -> tuple[Path, dict[str, Any]]:
    from engram.launch.runs.trained import find_checkpoint

    return find_checkpoint(RunDirectory.open(run, lock=False), which)


def test_what_stands_behind_the_best_is_in_the_checkpoint(three: Path) -> None:
    best = newest(three)["best"]
    assert best == saved.Best(5.0, steps_saved(three)[0], 0, 1000, 0.1)
    assert str(best) == "mean return 5.000 +- 0.196 of the last 1,000 training episodes"


def test_none_among_the_cores_options_comes_back(tmp_path: Path) -> None:
    config = parse_run(["--core", "rmc", "--core-args", "gate=None", "--checkpoint-url", "s3://bucket/run"])
    assert config.agent.core_args["gate"] is None
    with RunDirectory.create(tmp_path / "run", to_dict(config), name="x") as run:
        assert 'gate = "None"' in (run.path / "config.toml").read_text()
        assert from_dict(RunConfig, run.config()) == config


def test_a_torn_line_in_the_middle_of_the_metrics_is_set_aside(run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    first, rest = before.split(b"\n", 1)
    torn = b'{"step": 12, "ti' + first
    (run / "metrics.jsonl").write_bytes(first + b"\n" + torn + b"\n" + rest)
    assert run_train("--resume", run, "--total-steps", 120) == 0
    assert (run / "metrics.jsonl").read_bytes().startswith(before)
    assert torn in (run / "metrics.abandoned.jsonl").read_bytes()
    assert [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
