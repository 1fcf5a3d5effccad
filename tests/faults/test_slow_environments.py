"""Environments that are slow, hang, or must be closed: runs obey their signals, and only silence counts as a hang."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runs import FOREVER, family, gone, last_step, start, steps_saved, stop, wait_for
from slow_envs import noted

HERE = str(Path(__file__).parents[1] / "support")
WORDS = [
    *("--env", "slow_envs:Slow", "--core", "lstm", "--core-args", "hidden_size=8", *FOREVER, "--log-every", 1),
    *("--envs-per-actor", 2, "--envs-per-update", 2, "--unroll-length", 4, "--checkpoint-every", 1000),
]
MANY = 40
"""Episodes of an evaluation, each in an environment of its own."""


Begin = Callable[..., "tuple[subprocess.Popen[str], Path]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a run with these flags and arguments of the environment; returns its process and the environments' log."""
    started: list[subprocess.Popen[str]] = []

    def begin_run(run: Path, *words: object, **env_args: object) -> "tuple[subprocess.Popen[str], Path]":
        log = run.with_suffix(".log")
        path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
        words = (*WORDS, *words, "--run-dir", run, "--env-args", f"log={log}")
        given = [f"{name}={value}" for name, value in env_args.items()]
        started.append(start(*words, *given, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}))
        return started[-1], log

    yield begin_run
    for process in started:
        if process.poll() is None:  # the test has failed
            for each in family(process.pid):
                each.kill()
            process.wait()


@pytest.mark.parametrize("where", [("--local",), ("--restarts", 2, "--local"), ()], ids=["local", "supervised", "ray"])
def test_a_signal_in_a_slow_evaluation_ends_the_run_in_seconds_with_all_steps(
    tmp_path: Path, begin: Begin, where: tuple[object, ...]
) -> None:
    run = tmp_path / "run"
    process, log = begin(run, *where, "--eval-every", 8, "--eval-episodes", MANY, step_seconds=0.05)
    wait_for(lambda: noted(log, "made") - noted(log, "closed") >= MANY, process=process)
    time.sleep(1)
    everyone, began = family(process.pid), time.monotonic()
    if "--restarts" in where:
        process.kill()
        wait_for(lambda: gone(everyone), seconds=10)
    else:
        code, output = stop(process)
        assert code == 0, output
        assert "stopped (SIGTERM)" in output
        assert "the evaluation at step 8 was stopped" in output
        assert noted(log, "made") == noted(log, "closed")
    assert time.monotonic() - began < 10
    assert steps_saved(run)[-1] >= 8


def test_an_environment_that_hangs_is_named_and_ends_a_local_run(tmp_path: Path, begin: Begin) -> None:
    run = tmp_path / "run"
    process, _ = begin(run, "--local", "--stall-timeout", 0.05, hang_at=41)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert "ended (no update for" in output
    assert re.search(r"slow_envs\.py\", line \d+ in step\n", output)
    assert steps_saved(run) == [last_step(run)] == [80]


@pytest.mark.parametrize("where", [("--local",), ("--act-on", "cpu")], ids=["local", "thread"])
def test_a_signal_is_obeyed_while_an_environment_hangs(tmp_path: Path, begin: Begin, where: tuple[object, ...]) -> None:
    run = tmp_path / "run"
    process, _ = begin(run, *where, hang_at=41)
    wait_for(lambda: last_step(run) == 80, process=process)
    everyone, began = family(process.pid), time.monotonic()
    code, output = stop(process)
    assert code == 0, output
    assert time.monotonic() - began < 30
    assert "stopped (SIGTERM)" in output
    assert steps_saved(run) == [80]
    assert gone(everyone)


@pytest.mark.parametrize("where", [("--local",), ()], ids=["local", "ray"])
@pytest.mark.parametrize(("method", "named"), [("constructor", "__init__"), ("reset", "reset")])
def test_a_signal_is_obeyed_while_an_environment_hangs_before_training(
    tmp_path: Path, begin: Begin, method: str, named: str, where: tuple[object, ...]
) -> None:
    process, log = begin(tmp_path / "run", *where, hang_in=method)
    wait_for(lambda: noted(log, "made") > 0, process=process)
    everyone = family(process.pid)
    code, output = stop(process)
    assert code == 0, output
    assert "stopped (SIGTERM) before training began" in output
    assert re.search(rf"slow_envs\.py\", line \d+ in {named}\n", output)
    wait_for(lambda: gone(everyone), seconds=20)


def test_an_environment_that_hangs_before_training_ends_the_run(tmp_path: Path, begin: Begin) -> None:
    process, _ = begin(tmp_path / "run", "--local", "--stall-timeout", 0.05, hang_in="constructor", start_seconds=1)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert "ended (no update for" in output
    assert re.search(r"slow_envs\.py\", line \d+ in __init__\n", output)


@pytest.mark.parametrize("slow", [{"step_seconds": 1.5}, {"reset_seconds": 3, "length": 1}], ids=["steps", "resets"])
def test_an_actor_whose_environments_are_slow_is_not_taken_for_hanging(
    tmp_path: Path, begin: Begin, slow: dict[str, object]
) -> None:
    """An unroll takes longer than --actor-timeout and --stall-timeout, a step does not."""
    run = tmp_path / "run"
    words = ("--actor-timeout", 8, "--unroll-length", 8, "--stall-timeout", 0.15)
    process, log = begin(run, *words, **slow)
    wait_for(lambda: last_step(run) > 0, process=process)
    assert noted(log, "made") == 3, "one to check and two to train in: none was replaced"
    code, output = stop(process)
    assert code == 0, output
    assert "is replaced" not in output


def test_an_actor_that_falls_silent_within_an_unroll_is_replaced(tmp_path: Path, begin: Begin) -> None:
    run = tmp_path / "run"
    words = ("--actor-timeout", 2, "--unroll-length", 8, "--max-actor-failures", 0)
    process, _ = begin(run, *words, step_seconds=0.3, hang_at=12)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "actor 0 has not responded or stepped its environments for 2 s" in output
