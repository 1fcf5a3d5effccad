"""Learner processes that are killed or stopped: the others continue at once."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engram.launch.train import command as train
from engram.learners.remote.team import Team
from runs import TINY, last_step, rows, start, stop, wait_for, workers

REBUILT_SECONDS = 15.0
WORDS = (*TINY, "--num-actors", 2, "--envs-per-update", 8, "--num-learners", 2, "--log-seconds", 0.5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("sync", [(), ("--sync",)], ids=["async", "sync"])
def test_the_others_continue_and_nothing_learned_is_lost(
    tmp_path: Path, sync: tuple[str, ...], number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start(*WORDS, *sync, "--total-steps", 10**9, "--run-dir", run)
    wait_for(lambda: last_step(run) > 5_000)  # functions are compiled
    (lost,) = workers(process.pid, "LearnerProcess")
    lost.send_signal(number)
    time.sleep(0.5)
    reached, since = last_step(run), time.monotonic()
    wait_for(lambda: last_step(run) > reached + 100)
    seconds = time.monotonic() - since
    wait_for(lambda: last_step(run) > reached + 5_000)
    code, output = stop(process)
    assert code == 0, output
    assert "the group of learners restarts from step" in output
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(steps)
    assert not lost.is_running() or lost.status() == "zombie"
    assert seconds < REBUILT_SECONDS, seconds


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_the_members_of_a_lost_learner_continue(tmp_path: Path, number: signal.Signals) -> None:
    """They continue within seconds in the run's process and lose no step."""
    run = tmp_path / "run"
    process = start(*WORDS, "--population", 2, "--total-steps", 10**9, "--run-dir", run)
    member = run / "members" / "1"
    wait_for(lambda: last_step(member) > 2_000, process=process)
    (lost,) = workers(process.pid, "MemberProcess")
    lost.send_signal(number)
    time.sleep(0.5)
    reached, since = last_step(member), time.monotonic()
    wait_for(lambda: last_step(member) > reached + 100, process=process)
    seconds = time.monotonic() - since
    wait_for(lambda: last_step(member) > reached + 2_000, process=process)
    code, output = stop(process)
    assert code == 0, output
    assert "learner 0 continues with the members of learner 1" in output
    steps = [row["step"] for row in rows(member)]
    assert steps == sorted(steps)
    assert seconds < REBUILT_SECONDS, seconds


@pytest.mark.parametrize("method", ["connect", "learn"])
def test_a_learner_that_hangs_while_the_group_forms_or_begins_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """`learn`: in the first update, in which functions are compiled."""
    original, seconds = getattr(Team, method), list[float]()

    def stop_first(self: Team, *arguments: Any) -> Any:
        if not seconds:
            workers(os.getpid(), "LearnerProcess")[0].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        result = original(self, *arguments)
        seconds.append(time.monotonic() - began)
        return result

    monkeypatch.setattr(Team, method, stop_first)
    words = map(str, (*WORDS, "--total-steps", 2_000, "--run-dir", tmp_path / "run"))
    assert train.main(list(words)) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "learner 1 has not responded for 5 s: the group of learners restarts" in output
    assert seconds[0] < REBUILT_SECONDS, seconds
