"""Copies of checkpoints at a URL: whole or not there, pruned, fetched and resumed; a store that fails is a warning."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest

from engram.base.errors import EngramError
from engram.launch.metrics.accumulator import Accumulator, Settled
from engram.launch.runs import saved
from engram.launch.runs.directory import resume_command
from engram.launch.runs.mirror import Mirror, fetch, refuse_taken
from engram.launch.train import command as train
from engram.learners import checkpoints
from runs import TINY, rows, steps_saved

LOCAL = (*TINY, "--local", "--sync", "--lr-schedule", "constant")


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("seed = 7\n")
    return tmp_path / "config.toml"


@pytest.fixture
def memory() -> Iterator[str]:
    """A store that is no disk."""
    yield "memory://bucket/run"
    fsspec.filesystem("memory").store.clear()


def never(message: str) -> None:
    raise AssertionError(message)


def mirrored(url: str, config: Path, steps: list[int], warn: Callable[[str], None] = never, keep: int = 2) -> None:
    """Write checkpoints of these steps and copy each of them; the run directory keeps only the last."""
    for step in steps:
        with closing(Mirror(url, [config], keep, warn)) as mirror:
            path = checkpoints.save(config.parent / "checkpoints", step, {"step": step})
            mirror.push(path)
        checkpoints.Kept(config.parent / "checkpoints").prune(1)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_copied_is_fetched_and_the_oldest_are_removed(kind: str, config: Path, memory: str) -> None:
    url = memory if kind == "memory" else f"file://{config.parent}/elsewhere"
    refuse_taken(url)
    mirrored(url, config, [1, 2, 3, 4])
    with pytest.raises(EngramError, match="contains a run"):
        refuse_taken(url)
    found = fetch(url, str(config.parent / "fetched"))
    assert (found / "config.toml").read_text() == "seed = 7\n"
    newest = checkpoints.latest(found / "checkpoints")
    assert newest is not None
    assert checkpoints.load(newest) == {"step": 4}
    files, root = fsspec.core.url_to_fs(url)
    there = sorted(path.rstrip("/")[-1] for path in files.ls(f"{root}/checkpoints", detail=False))
    assert there == ["3", "4"]


@pytest.mark.parametrize("name", checkpoints.FILES)
def test_an_interrupted_copy_is_no_checkpoint(name: str, config: Path, memory: str, capsys: Any) -> None:
    mirrored(memory, config, [1, 2])
    fsspec.filesystem("memory").rm(f"/bucket/run/checkpoints/step-000000000002/{name}")
    found = fetch(memory, str(config.parent / "fetched"))
    assert [path.name for path in (found / "checkpoints").iterdir()] == ["step-000000000001"]
    assert name in capsys.readouterr().out


def test_a_store_that_fails_is_a_warning_and_the_next_copy_is_whole(config: Path) -> None:
    place = config.parent / "store"
    place.write_text("a file where the store should be")
    warnings: list[str] = []
    mirrored(f"file://{place}", config, [1], warnings.append)
    assert len(warnings) == 1
    assert "step-000000000001 is not at file://" in warnings[0]
    place.unlink()
    mirrored(f"file://{place}", config, [2])
    assert [path.name for path in (place / "checkpoints").iterdir()] == ["step-000000000002"]


def test_a_run_goes_on_elsewhere_as_if_it_had_stayed(tmp_path: Path) -> None:
    assert run_train(*LOCAL, "--total-steps", 400, "--run-dir", tmp_path / "whole") == 0
    url = f"file://{tmp_path}/store"
    assert run_train(*LOCAL, "--total-steps", 200, "--run-dir", tmp_path / "here", "--checkpoint-url", url) == 0
    assert run_train("--resume", url, "--total-steps", 400, "--run-dir", tmp_path / "there") == 0

    def numbers(run: Path) -> list[Any]:
        values = [(row["step"], row["metrics"]) for row in rows(run)]
        return [(s, {k: v for k, v in metrics.items() if not k.startswith("perf/")}) for s, metrics in values]

    after, before = numbers(tmp_path / "there"), numbers(tmp_path / "here")
    assert numbers(tmp_path / "whole") == after
    assert after[: len(before)] == before
    assert len(after) > len(before) + 2
    assert numbers(tmp_path / "store")[: len(before)] == before
    copied = {path.name for path in (tmp_path / "store" / "checkpoints").iterdir()}
    assert f"step-{steps_saved(tmp_path / 'there')[-1]:012d}" in copied


def test_a_population_goes_on_elsewhere_with_its_log(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    population = ["--population", 2, "--pbt.warmup", 4, "--pbt.interval", 4, "--pbt.window", 4]
    words = [*LOCAL, *population, "--run-dir", tmp_path / "here", "--checkpoint-url", url]
    assert run_train(*words, "--total-steps", 200) == 0
    assert run_train("--resume", url, "--total-steps", 400, "--run-dir", tmp_path / "there") == 0
    before, after = ((tmp_path / name / "population.jsonl").read_text() for name in ("here", "there"))
    assert after.startswith(before)
    assert json.loads(after.splitlines()[len(before.splitlines())])["event"] == "resume"


def test_the_best_checkpoint_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = [9.0]
    monkeypatch.setattr(Accumulator, "settled", lambda _: Settled(returns.pop() if returns else 1.0, 1000, 0.1))
    url, words = f"file://{tmp_path}/store", ["--checkpoint-every", 0, "--keep-checkpoints", 1]
    run = [*LOCAL, *words, "--total-steps", 200, "--run-dir", tmp_path / "here", "--checkpoint-url", url]
    assert run_train(*run) == 0
    newest = checkpoints.latest(tmp_path / "here" / "checkpoints")
    assert newest is not None
    best = saved.read(newest)["best"]
    assert best.mean == 9.0
    assert best.step in [checkpoints.step_of(Path(name)) for name in os.listdir(tmp_path / "store" / "checkpoints")]
    found = fetch(url, str(tmp_path / "there"))
    assert sorted(path.name for path in (found / "checkpoints").iterdir()) == sorted(
        [f"step-{best.step:012d}", newest.name]
    )


def test_a_best_checkpoint_that_did_not_come_along_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = [9.0]
    monkeypatch.setattr(Accumulator, "settled", lambda _: Settled(returns.pop() if returns else 1.0, 1000, 0.1))
    run = tmp_path / "run"
    assert run_train(*LOCAL, "--checkpoint-every", 0, "--total-steps", 200, "--run-dir", run) == 0
    shutil.rmtree(run / "checkpoints" / f"step-{steps_saved(run)[0]:012d}")
    assert run_train("--resume", run, "--total-steps", 300) == 0
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    best = saved.read(newest)["best"]
    assert (best.mean, best.step in steps_saved(run)) == (1.0, True)


def test_mistakes_are_named(tmp_path: Path, config: Path, memory: str) -> None:
    mirrored(memory, config, [1])
    for words, said in (
        ([*LOCAL, "--checkpoint-url", memory], f"contains a run; to continue it: {resume_command(memory)}"),
        ([*LOCAL, "--checkpoint-url", "nosuch://bucket"], "nosuch"),
        (["--resume", "memory://nothing/here"], "memory://nothing/here contains no run"),
        (["--resume", memory, "--run-dir", tmp_path], "is not empty"),
    ):
        with pytest.raises(EngramError, match=said):
            run_train(*words)
    with pytest.raises(EngramError, match="passwords belong in the environment"):
        run_train(*LOCAL, "--checkpoint-url", "s3://key:secret@bucket/run")


def test_nothing_but_the_files_of_a_run_is_fetched(config: Path) -> None:
    there = config.parent / "elsewhere"
    mirrored(f"file://{there}", config, [1])
    (there / "checkpoints" / "step-000000000001" / "module.py").write_text("raise SystemExit\n")
    found = fetch(f"file://{there}", str(config.parent / "fetched"))
    assert sorted(path.name for path in found.rglob("*") if path.is_file()) == sorted(
        ["config.toml", *checkpoints.FILES]
    )
