"""A run's actors from start to end: on Ray as in this process, whatever fails first, through stops at any moment."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from engram.actors.remote import pool as pool_module
from engram.base.processes import StopFlag
from engram.launch.cluster import ray_session
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import parse_run
from engram.launch.runs import saved
from engram.launch.train import acting
from engram.launch.train import command as train
from engram.launch.train.acting import Acting
from engram.launch.train.trainer import Trainer
from runs import TINY, steps_saved

SYNC = [*TINY, "--sync", "--num-actors", "2", "--envs-per-update", "8", "--lr-schedule", "constant"]


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def newest(run: Path) -> dict[str, Any]:
    return saved.read(run / "checkpoints" / f"step-{steps_saved(run)[-1]:012d}")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One Ray for all runs of a test."""
    ray_session.start_ray(2)
    stop = ray_session.stop_ray
    monkeypatch.setattr(ray_session, "stop_ray", lambda: True)
    yield
    stop()


def test_a_stop_inside_a_gathering_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: None
) -> None:
    """On Ray, with unrolls that take longer than the pool's patience, and a checkpoint whenever one may be written."""
    assert run_train(*SYNC, "--local", "--total-steps", 400, "--run-dir", tmp_path / "whole") == 0
    monkeypatch.setattr(pool_module, "PATIENCE", 0.002)
    reason, gatherings = Trainer._reason_to_stop, []

    def stop_inside(self: Trainer, *others: Any) -> str:
        gatherings.append(self.pool.gathering)
        if self.steps >= 100:
            self._saved_at = time.monotonic() + 10**6  # no more before the stop, which has something to save then
        return "SIGTERM" if self.steps >= 150 and self.pool.gathering else reason(self, *others)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_reason_to_stop", stop_inside)
        words = ("--total-steps", 400, "--checkpoint-every", 0, "--keep-checkpoints", 99, "--run-dir", run)
        assert run_train(*SYNC, *words) == 0
    assert any(gatherings)
    assert 150 <= steps_saved(run)[-1] < 400
    for step in steps_saved(run):
        assert len(saved.read(run / "checkpoints" / f"step-{step:012d}")["actors"]) == 2
    assert run_train("--resume", run) == 0
    learners = [newest(path)["members"][0]["learner"] for path in (run, tmp_path / "whole")]
    assert learners[0]["steps"] == learners[1]["steps"]
    for name, weights in learners[0]["agent"].items():
        assert torch.equal(weights, learners[1]["agent"][name]), name


def config(*words: str) -> RunConfig:
    return parse_run([*TINY, *words])


def test_a_pool_that_cannot_be_made_leaves_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = os.cpu_count() or 1

    def fails(*_: object) -> None:
        ray_session.start_ray(2, None, float(cpus))
        assert ray.cluster_resources()["CPU"] == 2 * cpus, "room for what all actors claim, however few cores there are"
        raise RuntimeError("no actors today")

    monkeypatch.setattr(acting, "make_pool", fails)
    run = config()
    with pytest.raises(RuntimeError, match="no actors today"), Acting(run, run.factory(), StopFlag()) as actors:
        actors.start()
    assert not ray.is_initialized()


class BadEnd:
    """A pool that cannot be closed."""

    def close(self) -> None:
        raise OSError("cannot close")


def end_badly(problem: Exception | None) -> None:
    """A run whose pool cannot be closed, after another error or none."""
    run = config("--local")
    with Acting(run, run.factory(), StopFlag()) as actors:
        actors._pool.set_result(BadEnd())  # type: ignore[arg-type]
        if problem:
            raise problem


def test_a_pool_that_cannot_be_closed_does_not_hide_the_first_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="the first error"):
        end_badly(ValueError("the first error"))
    assert "the actors did not stop: cannot close" in capfd.readouterr().err
    with pytest.raises(OSError, match="cannot close"):
        end_badly(None)
