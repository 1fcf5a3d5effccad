"""`rl-train --restarts N`: a run outlives the death of its process, and ends where it should."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from engram.base.errors import EngramError
from engram.base.processes import StopFlag
from engram.launch.train import command as train
from runs import FOREVER, TINY, family, gone, last_step, rows, start, steps_saved, stop, wait_for


def learner_of(supervisor: int) -> psutil.Process:
    """The process that trains."""
    wait_for(lambda: psutil.Process(supervisor).children())
    return psutil.Process(supervisor).children()[0]


def test_a_killed_learner_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*TINY, *FOREVER, "--local", "--checkpoint-every", 0.2, "--run-dir", run)
    process = start(*words, "--restarts", 1)
    for _ in range(3):  # more often than --restarts: a new checkpoint ends the row
        reached = max(steps_saved(run), default=-1)
        wait_for(lambda reached=reached: max(steps_saved(run), default=-1) > reached)
        learner = learner_of(process.pid)
        learner.kill()
        wait_for(lambda learner=learner: gone([learner]))
        before = max(steps_saved(run))
        wait_for(lambda before=before: max(steps_saved(run)) > before)
    learner = learner_of(process.pid)
    code, output = stop(process)
    assert code == 0, output
    assert output.count("ended by SIGKILL; restart 1 of 1 in a row follows") == 3
    assert "stopped (SIGTERM)" in output
    assert gone([learner])
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(set(steps))
    assert steps_saved(run)[-1] == steps[-1]


def test_a_learner_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--local", "--run-dir", run, "--restarts", 3)
    wait_for(lambda: last_step(run) > 0)
    learner_of(process.pid).kill()
    wait_for(lambda: (run / "metrics.abandoned.jsonl").exists())
    code, output = stop(process)
    assert code == 0, output
    assert "restart 1 of 3" in output


def test_a_run_that_is_fetched_from_a_url_goes_on_from_its_own_checkpoints(tmp_path: Path) -> None:
    store, run = f"file://{tmp_path}/store", tmp_path / "run"
    words = ("--local", "--total-steps", 100, "--checkpoint-url", store, "--run-dir", tmp_path / "first")
    output, _ = start(*TINY, *words).communicate(timeout=120)
    assert "finished" in output
    process = start("--restarts", 1, "--resume", store, *FOREVER, "--checkpoint-every", 0.2, "--run-dir", run)
    for _ in range(2):  # more often than --restarts
        reached = max(steps_saved(run), default=100)
        wait_for(lambda reached=reached: max(steps_saved(run), default=-1) > reached)
        learner = learner_of(process.pid)
        learner.kill()
        wait_for(lambda learner=learner: gone([learner]))
    before = steps_saved(run)[-1]
    wait_for(lambda: steps_saved(run)[-1] > before)
    code, output = stop(process)
    assert code == 0, output
    assert output.count("restart 1 of 1 in a row follows") == 2
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(set(steps))


def test_a_run_that_comes_to_no_checkpoint_is_given_up(tmp_path: Path) -> None:
    process = start(*TINY, *FOREVER, "--local", "--run-dir", tmp_path / "run", "--restarts", 1)
    for _ in range(2):
        learner = learner_of(process.pid)
        learner.kill()
        wait_for(lambda learner=learner: gone([learner]))
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "1 restarts in a row without a new checkpoint" in output


def test_a_supervisor_that_is_killed_takes_the_run_along_with_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--local", "--run-dir", run, "--restarts", 3)
    wait_for(lambda: last_step(run) > 0)
    everyone = family(process.pid)
    process.kill()
    wait_for(lambda: gone(everyone), seconds=60)
    assert steps_saved(run)[-1] == last_step(run)


def test_the_users_mistake_is_not_repeated(tmp_path: Path) -> None:
    for words, said in (
        (["--restarts", "0"], "--restarts is '0'; allowed: whole numbers, at least 1"),
        (["--restarts", "3", "--env", "boxwrld"], "boxwrld"),
        (["--restarts", "3", "--resume", str(tmp_path)], "contains no run"),
    ):
        process = start(*words)
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 2, output
        assert output.count(said) == 1
        assert "Traceback" not in output
    assert os.listdir(tmp_path) == []


def test_sigint_reaches_the_run_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*TINY, *FOREVER, "--local", "--run-dir", run, "--restarts", 3, start_new_session=True)
    wait_for(lambda: last_step(run) > 0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does; twice would interrupt without a checkpoint
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "stopped (SIGINT)" in output


def test_a_restarted_run_has_the_time_limit_of_its_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit is not saved with the run, so every restart repeats it."""
    (tmp_path / "base.toml").write_text('env = "t-maze"\ntime_limit = 5.0\n')
    again: list[Sequence[str]] = []
    monkeypatch.setattr(train, "keep_alive", lambda first, then, *_: again.append(then))
    train.supervise(["--config", str(tmp_path / "base.toml"), "--run-dir", str(tmp_path / "run")], 1, StopFlag(()))
    assert again == [["--resume", str(tmp_path / "run"), "--time-limit", "5.0"]]


def test_runs_that_start_in_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor names a directory before the run creates its files."""
    monkeypatch.chdir(tmp_path)
    runs: list[Path] = []

    def keep_alive(first: Sequence[str], then: Sequence[str], run: Path, *_: object) -> int:
        runs.append(run)
        return train.supervise(["--env", "t-maze"], 1, StopFlag(())) if len(runs) == 1 else 0

    monkeypatch.setattr(train, "keep_alive", keep_alive)
    assert train.supervise(["--env", "t-maze"], 1, StopFlag(())) == 0
    assert len({*runs}) == 2


def test_restarts_is_no_setting_of_a_run() -> None:
    with pytest.raises(EngramError, match=r"--restarts is 'many'"):
        train.main(["--restarts", "many"])
