"""Going on with a run: all that the uninterrupted run would have, and what must differ."""

import importlib
import shutil
import sys
import threading
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.base.errors import EngramError
from engram.base.processes import StopFlag
from engram.launch.entry import rl_eval, rl_train
from engram.launch.runs import saved
from engram.launch.runs.mirror import Mirror
from engram.launch.train import acting
from engram.launch.train import command as train
from engram.launch.train.trainer import Trainer
from engram.learners import checkpoints
from runs import TINY, rows, steps_saved

LOCAL = [*TINY, "--local", "--lr-schedule", "constant"]
OLD = Path(__file__).parents[2] / "fixtures" / "run-4d2bf2e"


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def newest(run: Path) -> dict[str, Any]:
    path = checkpoints.latest(run / "checkpoints")
    assert path is not None
    return saved.read(path)


def test_a_resumed_run_has_collected_what_the_uninterrupted_one_has(tmp_path: Path) -> None:
    """In the middle of a row: sums, episodes, the window and what is known of each environment."""
    words = [*LOCAL, "--sync", "--log-every", 10**6]
    assert run_train(*words, "--total-steps", 200, "--run-dir", tmp_path / "whole") == 0
    assert run_train(*words, "--total-steps", 110, "--run-dir", tmp_path / "parts") == 0
    assert run_train("--resume", tmp_path / "parts", "--total-steps", 200) == 0
    whole, parts = (newest(tmp_path / name)["members"][0]["accumulator"] for name in ("whole", "parts"))
    assert len(whole["window"]) > 5, "episodes of before and after the stop"
    for name in ("window", "begun", "ended"):
        assert parts[name] == whole[name], name


def test_a_row_that_a_stop_has_cut_in_two_is_the_whole_row(tmp_path: Path) -> None:
    words = [*LOCAL, "--sync", "--log-every", 150]
    assert run_train(*words, "--total-steps", 160, "--run-dir", tmp_path / "whole") == 0
    # The last row of a part is written at its end; the state of before that is what a kill leaves.
    run = tmp_path / "parts"
    assert (
        run_train(*words, "--total-steps", 160, "--checkpoint-every", 0, "--keep-checkpoints", 99, "--run-dir", run)
        == 0
    )
    for step in steps_saved(run):
        if step > 80:
            shutil.rmtree(run / "checkpoints" / f"step-{step:012d}")
    assert run_train("--resume", run) == 0

    def learned(path: Path) -> list[dict[str, float]]:
        return [{k: v for k, v in row["metrics"].items() if not k.startswith("perf/")} for row in rows(path)]

    assert learned(run) == learned(tmp_path / "whole")


def test_an_asynchronous_run_goes_on_with_other_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An asynchronous run keeps no state of its environments: the levels of its beginning would come a second time."""
    run = tmp_path / "run"
    made: list[ActorFactory] = []
    make: Callable[..., Any] = acting.make_pool

    def noted(config: Any, factory: ActorFactory, *others: Any) -> Any:
        made.append(factory)
        return make(config, factory, *others)

    monkeypatch.setattr(acting, "make_pool", noted)
    run_train(*LOCAL, "--total-steps", 60, "--run-dir", run)
    run_train("--resume", run, "--total-steps", 120)
    boards = []
    for factory in made:
        unroll = factory.make_actor(0).unroll()
        boards.append(unroll.env.observation[0].numpy())
    assert not np.array_equal(boards[0], boards[1])


def test_after_an_asynchronous_resume_only_new_episodes_count_for_the_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_train(*LOCAL, "--total-steps", 200, "--run-dir", run)
    before = newest(run)["members"][0]["accumulator"]
    run_train("--resume", run, "--total-steps", 220)
    after = newest(run)["members"][0]["accumulator"]
    assert after["begun"] < before["begun"]
    assert len(after["window"]) >= len(before["window"]), "what is shown goes on"


def test_torchs_random_stream_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    found: list[torch.Tensor] = []
    begin = Trainer.run

    def look(self: Trainer, stop: StopFlag) -> str:
        found.append(torch.get_rng_state())
        torch.rand(3)  # as a core with noise would draw; else the stream is where making the networks left it
        return begin(self, stop)

    monkeypatch.setattr(Trainer, "run", look)
    run_train(*LOCAL, "--total-steps", 60, "--run-dir", run)
    kept = newest(run)["torch_rng"]
    found.clear()
    torch.manual_seed(99)
    run_train("--resume", run, "--total-steps", 120)
    assert torch.equal(found[0], kept)


def test_all_of_a_checkpoint_is_synced_to_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and the directory that names them, then the renaming, then the directory that holds the new name."""
    import os

    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noted_sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def noted_rename(self: Path, target: Path) -> Path:
        done.append(f"rename {Path(target).name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    folder = tmp_path / "checkpoints"
    checkpoints.save(folder, 7, {"a": torch.zeros(2)})
    name = "step-000000000007"
    assert sorted(done[:3]) == ["sync SHA256SUMS", "sync state.json", "sync tensors.pt"]
    assert done[3:] == [f"sync .partial-{name}", f"rename {name}", "sync checkpoints"]


def test_a_copy_has_its_checksums_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them it is no checkpoint; so one that is interrupted anywhere is none."""
    opened: list[str] = []
    system = type(fsspec.filesystem("file"))
    whole = system.open

    def noted(self: Any, path: str, mode: str = "rb", **others: Any) -> Any:
        if "w" in mode:
            opened.append(Path(path).name)
        return whole(self, path, mode, **others)

    monkeypatch.setattr(system, "open", noted)
    (tmp_path / "config.toml").write_text("seed = 7\n")
    path = checkpoints.save(tmp_path / "checkpoints", 1, {"step": 1})
    with closing(Mirror(f"file://{tmp_path}/store", [tmp_path / "config.toml"], 2, pytest.fail)) as mirror:
        mirror.push(path)
    written = [name for name in opened if name in checkpoints.FILES]
    assert written[-1] == "SHA256SUMS"
    assert sorted(written) == sorted(checkpoints.FILES)
    assert threading.active_count() < 10


def test_a_run_of_an_older_version_goes_on_and_is_evaluated(tmp_path: Path) -> None:
    """Written by commit 4d2bf2e, before algorithms had settings of their own and states were described."""
    run = tmp_path / "run"
    shutil.copytree(OLD, run)
    step = steps_saved(run)[-1]
    with pytest.raises(SystemExit) as end:
        rl_eval([str(run), "--episodes", "4"])
    assert end.value.code == 0
    assert run_train("--resume", run, "--total-steps", 2 * step) == 0
    assert newest(run)["members"][0]["learner"]["steps"] >= 2 * step
    assert rows(run)[0]["step"] <= step < rows(run)[-1]["step"]
    recorded = tomllib.loads((run / "config.toml").read_text())
    assert recorded["learner"]["precision"] == "float32", "it was trained before there was another one"


@pytest.mark.parametrize("total", [50, 30])
def test_a_resume_to_where_the_run_has_been_already_is_refused_and_changes_nothing(run: Path, total: int) -> None:
    before = (run / "config.toml").read_bytes()
    with pytest.raises(
        EngramError, match=rf"trained for \d+ steps already; --total-steps is {total}, which counts from"
    ):
        run_train("--resume", run, "--total-steps", total)
    assert (run / "config.toml").read_bytes() == before
    assert run_train("--resume", run) == 0


def test_a_changed_environment_is_one_line_before_actors_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, code = tmp_path / "run", tmp_path / "changing_env.py"
    code.write_text(CHANGING.format(inputs=3, actions=2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = (
        "--env",
        "changing_env:Environment",
        "--core",
        "gru",
        "--core-args",
        "hidden_size=4",
        "--embedding-size",
        4,
    )
    sizes = ("--envs-per-actor", 2, "--envs-per-update", 2, "--unroll-length", 4, "--total-steps", 16, "--run-dir", run)
    with pytest.raises(SystemExit) as end:
        rl_train([str(word) for word in (*words, *sizes, "--local")])
    assert end.value.code == 0
    for inputs, actions in ((5, 2), (3, 4)):
        code.write_text(CHANGING.format(inputs=inputs, actions=actions))
        monkeypatch.delitem(sys.modules, "changing_env")
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            rl_train(["--resume", str(run), "--total-steps", "64"])
        said = capsys.readouterr().err
        assert end.value.code == 2, said
        assert (
            "cannot be resumed: the observation or action space of the environment, or the code of the core, has"
            in said
        )
        assert said.count("\n") == 1


CHANGING = """
import gymnasium, numpy
class Environment(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, ({inputs},)), gymnasium.spaces.Discrete({actions})
    def reset(self, *, seed=None, options=None):
        return numpy.zeros({inputs}, numpy.float32), {{}}
    def step(self, action):
        return numpy.zeros({inputs}, numpy.float32), 0.0, False, False, {{}}
"""
