"""Runs with several learners: equal to one, resumed with any number, lag is bounded, a difference ends them."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from engram.base.errors import EngramError
from engram.launch.config.run_flags import parse_run
from engram.launch.runs import saved
from engram.launch.train import command as train
from engram.launch.train.trainer import Trainer
from runs import TINY, rows, steps_saved, workers

SYNC = [*TINY, "--sync", "--num-actors", "2", "--envs-per-update", "8", "--lr-schedule", "constant"]
POPULATION = [
    *("--env", "pomdp-graph", "--env-args", "num_steps=8", "--core", "fwm", "--core-args", "hidden_size=8"),
    *("memory_size=4", "--num-actors", "2", "--envs-per-actor", "4", "--envs-per-update", "8", "--unroll-length", "8"),
    *("--population", "3", "--pbt.warmup", "8", "--pbt.interval", "6", "--pbt.window", "4", "--pbt.p-value", "0.7"),
    *("--pbt.scheme", "truncation", "--pbt.explore", "learner.lr=loguniform(1e-4,1e-2)"),
]
SUPPORT = Path(__file__).parents[2] / "support"


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def newest(run: Path, member: int = 0) -> dict[str, Any]:
    return saved.read(run / "checkpoints" / f"step-{steps_saved(run)[-1]:012d}")["members"][member]


def events(run: Path) -> list[dict[str, Any]]:
    """The population's log without times and the fact that a run was resumed."""
    found = [json.loads(line) for line in (run / "population.jsonl").read_text().splitlines()]
    return [{name: x for name, x in each.items() if name != "time"} for each in found if each["event"] != "resume"]


def assert_equal(run: Path, other: Path) -> None:
    """The same weights up to the order of sums, the same episodes."""
    ours, theirs = newest(run), newest(other)
    for part in ("steps", "updates"):
        assert ours["learner"][part] == theirs["learner"][part]
    for name, value in theirs["learner"]["agent"].items():
        torch.testing.assert_close(ours["learner"]["agent"][name], value, rtol=0, atol=1e-5)
    assert ours["accumulator"]["window"] == theirs["accumulator"]["window"]


def test_two_learners_equal_one_also_when_a_run_changes_their_number(tmp_path: Path, shared_ray: None) -> None:
    """In synchronous mode, without a stop, and from two learners to one and back again."""
    assert run_train(*SYNC, "--local", "--total-steps", 600, "--run-dir", tmp_path / "one") == 0
    two = ("--no-local", "--num-learners", 2)
    assert run_train(*SYNC, *two, "--total-steps", 200, "--run-dir", tmp_path / "run") == 0
    assert run_train("--resume", tmp_path / "run", "--num-learners", 1, "--local", "--total-steps", 400) == 0
    assert run_train("--resume", tmp_path / "run", *two, "--total-steps", 600) == 0
    assert_equal(tmp_path / "run", tmp_path / "one")


@pytest.mark.nightly
def test_three_learners_at_full_speed(tmp_path: Path, shared_ray: None) -> None:
    """The lag of all shares is bounded and measured, actors are dealt to learners, every step is counted."""
    words = ("--num-actors", 3, "--num-learners", 3, "--envs-per-update", 13, "--total-steps", 3000)
    assert run_train(*TINY, *words, "--run-dir", tmp_path / "run") == 0
    found = [row["metrics"] for row in rows(tmp_path / "run")]
    assert max(row["perf/policy_lag_max"] for row in found) <= 1
    assert any(row["perf/policy_lag"] > 0 for row in found)
    assert {row["perf/actors"] for row in found} == {3.0}
    learner = newest(tmp_path / "run")["learner"]
    assert 3000 <= learner["steps"] <= learner["updates"] * 13 * 6
    ended = set(newest(tmp_path / "run")["accumulator"]["ended"])
    assert ended == set(range(12)), "environments of every share"


@pytest.mark.nightly
def test_learners_with_different_weights_end_the_run(
    tmp_path: Path, shared_ray: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    words = ("--torso", "drifting:Drifting", "--num-learners", 2, "--total-steps", 10_000)
    assert run_train(*TINY[:-2], *SYNC[len(TINY) :], *words, "--run-dir", tmp_path / "run") == 1
    assert "learner 1 has different weights from learner 0 after 100 updates" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number and number.name)
def test_a_population_dealt_to_two_learners(
    tmp_path: Path, shared_ray: None, monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None
) -> None:
    """The same weights, decisions and settings bit for bit as in one process, also resumed with another number of
    learners, and after the loss of a learner's process."""
    words = (*POPULATION, "--sync", "--lr-schedule", "constant", "--total-steps", 800)
    assert run_train(*words, "--local", "--run-dir", tmp_path / "one") == 0
    update, left = Trainer.update, [5]

    def stop_after_some(self: Trainer) -> None:
        update(self)
        left[0] -= 1
        if left[0] == 2 and number:
            (lost,) = (each for each in workers(os.getpid(), "MemberProcess") if each not in earlier)
            lost.send_signal(number)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGTERM)

    earlier = workers(os.getpid(), "MemberProcess")  # those of other tests may still be ending
    monkeypatch.setattr(Trainer, "update", stop_after_some)
    assert run_train(*words, "--num-learners", 2, "--run-dir", tmp_path / "run") == 0
    assert run_train("--resume", tmp_path / "run", "--num-learners", 3) == 0
    for member in range(3):
        ours, theirs = (newest(run, member)["learner"] for run in (tmp_path / "run", tmp_path / "one"))
        assert all(torch.equal(ours["agent"][name], value) for name, value in theirs["agent"].items())
        assert str(ours["optimizer"]) == str(theirs["optimizer"])
    decisions = [events(tmp_path / name) for name in ("run", "one")]
    assert decisions[0] == decisions[1]
    assert any(event["event"] == "copy" for event in decisions[0])


def test_a_population_dealt_to_two_learners_at_full_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    """Members learn from batches of several unrolls, with bounded lag and the environments of both actors; every step
    is counted; they compare. An actor's process may start late, so the 3000 steps begin when both actors have acted."""
    update, begun, ended = Trainer.update, list[int](), [set[int]() for _ in range(3)]

    def stop_in_time(self: Trainer) -> None:
        update(self)
        for member, own in zip(self.members, ended, strict=True):
            own.update(member.accumulator.state_dict()["ended"])  # a copy between members begins a new count
        begun[:] = begun or [member.steps for member in self.members if len(set[int]().union(*ended)) == 8]
        if begun and all(member.steps >= steps + 3000 for member, steps in zip(self.members, begun, strict=True)):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "update", stop_in_time)
    words = "--algorithm vtrace --no-sync --envs-per-update 6 --num-learners 2 --total-steps 30000 --log-every 1000"
    assert run_train(*POPULATION, *words.split(), "--run-dir", tmp_path / "run") == 0
    for member in range(3):
        found = [row["metrics"] for row in rows(tmp_path / "run" / "members" / str(member))]
        assert max(row["perf/policy_lag_max"] for row in found) <= 1
        learner = newest(tmp_path / "run", member)["learner"]
        assert 3000 <= learner["steps"] <= learner["updates"] * 6 * 8
        assert ended[member] == set(range(8))
    assert any(event["event"] == "copy" for event in events(tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--local",), "allowed with --local: 1"),
        (("--act-on", "cpu"), "allowed with --act-on: 1"),
        (("--cuda-graph",), "allowed with --cuda-graph: 1"),
        (("--device", "cuda:1", "--actor-gpus", "0.1"), "allowed with --actor-gpus: 1"),
        (("--population", "2", "--num-learners", "3"), "allowed with population = 2: at most 2"),
        (("--population", "2", "--pbt.together", "on"), "allowed with --pbt.together on: 1"),
        (("--num-actors", "auto"), "allowed with --num-actors auto: 1"),
        (("--num-actors", "1"), "allowed with num_actors = 1: at most 1"),
        (("--envs-per-update", "1", "--envs-per-actor", "1"), "allowed with envs_per_update = 1: at most 1"),
        (("--num-learners", "0"), "num_learners is 0; allowed: at least 1"),
    ],
    ids=str,
)
def test_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(EngramError, match=told):
        parse_run(["--env", "boxworld", "--num-actors", "4", "--num-learners", "2", *words])
