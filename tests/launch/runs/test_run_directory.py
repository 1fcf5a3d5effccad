import fcntl
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engram.base.errors import EngramError
from engram.base.files import AppendedFile, replace_file
from engram.launch.config.plain import differences
from engram.launch.runs.directory import RunDirectory, resume_command

CONFIG: dict[str, Any] = {
    "env": "boxworld",
    "env_args": {
        "path_length": (1, 3),
        "flag": True,
        "scale": 1.0,
        "note": 'a "b" \\ c\n',
        "size": 8,
        "nested": {"a": []},
    },
    "agent": {"core": "rmc", "core_args": {}, "torso": {"channels": [12, 24]}},
    "learner": {"lr": 5e-4, "eps": 1e-30, "bound": float("inf")},
    "run_dir": None,
    "seed": 1,
}
READ_BACK = {**CONFIG, "env_args": {**CONFIG["env_args"], "path_length": [1, 3]}}
del READ_BACK["run_dir"]


def with_learner(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, "learner": {**CONFIG["learner"], **changes}}


def error_of(path: Path, config: dict[str, Any] = CONFIG) -> str:
    """The message of a `create` that must fail; it is one line and leaves the directory unlocked and as it was."""
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file()} if path.is_dir() else {}
    with pytest.raises(EngramError) as caught:
        RunDirectory.create(path, config, name="x")
    for file, content in before.items():
        assert file.name == ".lock" or file.read_bytes() == content
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_config_comes_back_with_its_types(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "deep" / "run", CONFIG, name="x") as run:
        found = run.config()
    assert found == READ_BACK
    assert {k: type(v) for k, v in found["env_args"].items()} == {k: type(v) for k, v in READ_BACK["env_args"].items()}
    with RunDirectory.open(tmp_path / "deep" / "run") as again:
        assert again.config() == READ_BACK


def test_names_of_its_parts(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", CONFIG, name="x") as run:
        parts = (run.checkpoints, run.metrics_file, run.tensorboard, run.population_file)
        assert [p.relative_to(run.path).as_posix() for p in parts] == [
            "checkpoints",
            "metrics.jsonl",
            "tensorboard",
            "population.jsonl",
        ]


def test_no_path_makes_new_ones_even_in_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: RunDirectory.create(None, CONFIG, name="my/Env:v0 rmc"), range(8)))
    assert len({run.path for run in runs}) == 8
    assert all(run.path.parent == Path("runs") and run.path.name.startswith("my-Env-v0-rmc-20") for run in runs)
    for run in runs:
        run.close()


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, CONFIG, name="x").close()
    message = error_of(tmp_path, with_learner(lr=1e-3, discount=0.9))
    assert message.startswith(f"{tmp_path} contains a run; to continue it: {resume_command(tmp_path)}; for a new one")


def test_settings_that_are_gone_count_as_different() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1}) == [("b", 2, None)]


def test_other_peoples_files_stay(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "'thesis.tex'" in error_of(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_broken_start_leaves_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1 on nowhere\n")
    (tmp_path / ".config.toml.new").write_text("half a conf")
    with RunDirectory.create(tmp_path, CONFIG, name="x") as run:
        assert run.config() == READ_BACK


def test_paths_that_cannot_be_directories(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert "Not a directory" in error_of(file)
    assert "Not a directory" in error_of(file / "run")
    with pytest.raises(EngramError, match=r"cannot (write|use).*/proc/nothing"):
        RunDirectory.create("/proc/nothing/here", CONFIG, name="x")


def test_paths_among_parameters_are_texts_in_the_configuration(tmp_path: Path) -> None:
    config = {"env_args": {"file": Path("a"), "files": [Path("b")]}}
    with RunDirectory.create(tmp_path / "run", config, name="x") as run:
        assert run.config() == {"env_args": {"file": "a", "files": ["b"]}}


def test_a_value_that_toml_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngramError, match=r"config\.toml can contain only numbers"):
        RunDirectory.create(tmp_path / "run", {"env_args": {"sizes": [1, None]}}, name="x")
    assert not (tmp_path / "run").exists()


def test_open_wants_a_readable_run(tmp_path: Path) -> None:
    with pytest.raises(EngramError, match="does not exist"):
        RunDirectory.open(tmp_path / "missing")
    with pytest.raises(EngramError, match=r"has no config\.toml"):
        RunDirectory.open(tmp_path)
    (tmp_path / "config.toml").write_text("lr = = 3")
    with RunDirectory.open(tmp_path) as run, pytest.raises(EngramError, match="damaged"):
        run.config()


def test_rewriting_replaces_the_configuration(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, CONFIG, name="x") as run:
        run.rewrite_config({**CONFIG, "total_steps": 7})
        assert run.config() == {**READ_BACK, "total_steps": 7}


def test_a_closed_run_is_free_and_reading_needs_no_lock(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, CONFIG, name="x"):
        with pytest.raises(EngramError, match="in use"):
            RunDirectory.open(tmp_path)
        assert RunDirectory.open(tmp_path, lock=False).config() == READ_BACK
    RunDirectory.open(tmp_path).close()


def test_one_process_at_a_time_and_death_unlocks(tmp_path: Path) -> None:
    hold = (
        "import time; from engram.launch.runs.directory import RunDirectory\n"
        f"run = RunDirectory.create({str(tmp_path)!r}, {{'seed': 1}}, name='x')\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            message = error_of(tmp_path, {"seed": 2})
            assert f"in use by process {other.pid} on " in message
            with pytest.raises(EngramError, match=f"process {other.pid} on "):
                RunDirectory.open(tmp_path)
        finally:
            other.send_signal(signal.SIGKILL)
    with RunDirectory.open(tmp_path) as run:
        assert run.config() == {"seed": 1}


def test_a_process_that_only_looks_whether_a_run_is_in_use_keeps_no_one_out(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", {"seed": 1}, name="x").close()
    with (tmp_path / "run" / ".lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.01, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        with RunDirectory.open(tmp_path / "run") as run:
            assert run.in_use


def test_a_replaced_file_is_old_or_new_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    replace_file(file, b"old")
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="irectory"):
        replace_file(tmp_path / "directory", b"content")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.toml", "directory"]


def test_an_appended_file_comes_back_with_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a" / "log"
    log = AppendedFile(lambda: path, lambda: b"head\n")
    log.append(b"1\n")
    log.append(b"2\n")
    assert path.read_bytes() == b"head\n1\n2\n"
    path.unlink()
    path.parent.rmdir()
    log.append(b"3\n")
    assert path.read_bytes() == b"head\n3\n"


@pytest.mark.integration
def test_the_command_to_continue_works_without_activation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunDirectory.create(tmp_path, CONFIG, name="x").close()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command, *words = shlex.split(error_of(tmp_path, CONFIG).partition("to continue it: ")[2].partition(";")[0])
    assert subprocess.run([command, "--help"], capture_output=True).returncode == 0
    assert words == ["--resume", str(tmp_path)]
