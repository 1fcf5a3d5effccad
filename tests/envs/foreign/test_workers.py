"""Environments in worker processes: the results of one process, bit for bit, and no process left behind."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from engram.envs.registration import make_batch
from engram.launch.runs.saved import trainees_of
from engram.launch.train import command
from engram.learners import checkpoints

NUM_ENVS, STEPS = 5, 40


class Walk(gymnasium.Env):
    """A random walk with a Dict observation; ends at random, reports its length, fails on request."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict({"place": spaces.Box(-99, 99, (2,)), "image": spaces.Box(0, 255, (2, 3), np.uint8)})
    episode_fields = ("steps",)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(size=2).astype(np.float32), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        if self.fault == "raises":
            raise KeyError("no such place")
        if self.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        self.place = self.place + np.float32(action) + self.np_random.normal(size=2).astype(np.float32)
        self.time += 1
        terminated = bool(self.np_random.random() < 0.1)
        info = {"steps": self.time, "is_success": terminated}
        return self._observation(), float(self.place[0]), terminated, self.time == 12, info

    def _observation(self) -> Any:
        return {"place": self.place, "image": self.np_random.integers(256, size=(2, 3)).astype(np.uint8)}


Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes batches of Walk, which are closed at the end."""
    made: list[Any] = []

    def batch(workers: int, num_envs: int = NUM_ENVS, **parameters: Any) -> Any:
        made.append(make_batch(f"{__name__}:Walk", num_envs, 0, workers, **parameters))
        return made[-1]

    yield batch
    for each in made:
        each.close()


def rows_of(batch: Any) -> tuple[Any, ...]:
    n = batch.num_envs
    return batch.new_observation(), np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def played(batch: Any, first: int, last: int, rows: tuple[Any, ...]) -> list[np.ndarray]:
    """Everything that steps first..last write, and what ended episodes report."""
    actions, seen = np.random.default_rng(0).integers(3, size=(STEPS, batch.num_envs)), list[np.ndarray]()
    for t in range(first, last):
        batch.step_into(actions[t], *rows)
        if t == 20:
            batch.cut(np.arange(batch.num_envs) == 1)
        seen += [each.copy() for each in (*rows[0].values(), *rows[1:])]
        seen.append(batch.episode_facts(np.flatnonzero(rows[2] | rows[3])))
    return seen


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.nightly), 4])
def test_any_number_of_workers_gives_the_same_results_also_after_a_restore(make: Make, workers: int) -> None:
    plain, split = make(0), make(workers)
    assert type(plain) is not type(split)
    assert len(split.processes) == {2: 2, 4: 3}[workers]  # groups of 3 and 2, or of 2, 2 and 1
    rows, expected = rows_of(split), rows_of(plain)
    split.reset_into(rows[0], 7)
    plain.reset_into(expected[0], 7)
    assert_equal(list(rows[0].values()), list(expected[0].values()))
    whole = played(plain, 0, STEPS, expected)
    assert_equal(played(split, 0, 25, rows), whole[: 25 * 6])
    resumed = make(0 if workers == 4 else 3)  # with another number of workers
    resumed.trusted = True
    resumed.restore(split.save())
    assert_equal(played(resumed, 25, STEPS, rows), whole[25 * 6 :])


def test_an_exception_in_a_worker_is_that_of_the_environment(make: Make) -> None:
    batch = make(2, fault="raises")
    rows = rows_of(batch)
    batch.reset_into(rows[0], 1)
    with pytest.raises(KeyError, match="no such place") as problem:
        batch.step_into(np.zeros(NUM_ENVS, np.int64), *rows)
    assert "test_workers.py" in "".join(problem.value.__notes__)
    with pytest.raises(ValueError, match="not trusted"):
        batch.restore(batch.save())


@pytest.mark.nightly
def test_a_worker_that_dies_is_an_error_and_takes_the_others_along(make: Make) -> None:
    batch = make(2, fault="dies")
    rows = rows_of(batch)
    batch.reset_into(rows[0], 1)
    with pytest.raises(RuntimeError, match=r"a worker process of .*:Walk has ended"):
        batch.step_into(np.zeros(NUM_ENVS, np.int64), *rows)
    assert not any(process.is_alive() for process in batch.processes)


@pytest.mark.nightly
def test_workers_survive_the_signals_that_make_their_owner_save_and_end_when_it_closes(make: Make) -> None:
    batch = make(2)
    rows = rows_of(batch)
    batch.reset_into(rows[0], 1)
    processes = [psutil.Process(process.pid) for process in batch.processes]
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.terminate()
    time.sleep(0.05)
    assert batch.save()["sizes"].shape == (NUM_ENVS,)
    batch.close()
    assert not any(process.is_running() for process in processes)


def test_compiled_environments_take_no_workers() -> None:
    with pytest.raises(ValueError, match=r"env_workers is 2; allowed with maze, which steps all environments at once"):
        make_batch("maze", 4, 0, 2)


def final_weights(path: Path, *workers: str) -> dict[str, Any]:
    """Those of a run of two parts, the second one resumed, with so many workers in each."""
    words = f"--env {__name__}:Walk --core gru --core-args hidden_size=4 --local --algorithm a2c --envs-per-actor 4"
    sizes = f"--unroll-length 10 --total-steps 160 --env-workers {workers[0]} --run-dir {path}"
    assert command.main([*words.split(), *sizes.split()]) == 0
    more = f"--resume {path} --total-steps 320 --trust-checkpoint --env-workers {workers[1]}"
    assert command.main(more.split()) == 0
    newest = checkpoints.latest(path / "checkpoints")
    assert newest is not None
    return trainees_of(checkpoints.load(newest))[0].weights


def test_a_run_learns_the_same_with_any_number_of_workers_also_when_resumed_with_another(tmp_path: Path) -> None:
    plain, split = final_weights(tmp_path / "plain", "0", "0"), final_weights(tmp_path / "split", "2", "3")
    assert plain.keys() == split.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(split[name]), name)
    assert not multiprocessing.active_children()
