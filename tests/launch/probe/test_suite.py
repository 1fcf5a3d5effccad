"""rl-probe suite: cells become runs, the best learning rate goes on, finished cells stay, the table says it all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engram.launch.probe import suite
from engram.launch.probe.command import run
from engram.launch.probe.leaderboard import above_chance, ranked, write_leaderboard


def result(task, core, accuracy, chance=0.125):
    spread = {"accuracy": accuracy, "low": accuracy - 0.01, "high": accuracy + 0.03, "chance": chance}
    return {"task": task, "core": core, "parameters": 1234, "ms_per_update": 2.5, "tests": [spread], **spread}


def write(out, task, core, accuracy):
    (out / task / core).mkdir(parents=True)
    (out / task / core / "result.json").write_text(json.dumps(result(task, core, accuracy)))


def test_the_leaderboard_ranks_cores_by_their_mean_distance_from_chance(tmp_path):
    for task, core, accuracy in [
        ("copy", "gru", 0.5),
        ("recall", "gru", 1.0),
        ("copy", "rmc", 1.0),
        ("copy", "ffm", 0.4),
    ]:
        write(tmp_path, task, core, accuracy)
    write_leaderboard(tmp_path, minutes=5)
    text = (tmp_path / "leaderboard.txt").read_text().splitlines()
    assert [line.split()[0] for line in text] == ["core", "chance", "rmc", "gru", "ffm"]
    assert text[3].split() == ["gru", "1,234", "2.5", "50.0", "±2.0", "100.0", "±2.0"]
    assert text[2].split()[-1] == "-"
    assert (tmp_path / "leaderboard.md").read_text().splitlines()[
        0
    ] == "| core | parameters | ms/update | copy | recall |"
    assert len(json.loads((tmp_path / "leaderboard.json").read_text())["results"]) == 4
    assert (tmp_path / "leaderboard.png").read_bytes().startswith(b"\x89PNG")


def test_above_chance_is_zero_at_chance_and_one_where_all_is_right():
    assert above_chance(result("copy", "gru", 0.125)) == 0
    assert above_chance(result("copy", "gru", 1.0)) == 1
    tasks, cores = ranked({("copy", "b"): result("copy", "b", 0.3), ("copy", "a"): result("copy", "a", 0.3)})
    assert (tasks, cores) == (["copy"], ["a", "b"])


def test_the_best_learning_rate_goes_on_and_what_is_done_is_not_done_again(tmp_path, capsys):
    """Real runs of a second: with a rate of nothing no answer is learned, with the other one it is."""
    words = ["--cores", "gru", "--tasks", "recall-twin", "--task-args", "recall_twin.delay=1", "--minutes", "0.06"]
    words += ["--lrs", "1e-12", "0.01", "--test-sequences", "128", "--out", str(tmp_path)]
    assert suite.main(words) == 0
    cell = tmp_path / "recall-twin" / "gru"
    results = {path.parent.name: json.loads(path.read_text()) for path in sorted(cell.rglob("result.json"))}
    assert set(results) == {"gru", "lr-1e-12", "lr-0.01"}
    assert results["gru"] == results["lr-0.01"]
    assert results["gru"]["valid_accuracy"] > results["lr-1e-12"]["valid_accuracy"]
    searched, trained = (results[name]["minutes"] for name in ("lr-1e-12", "gru"))
    assert 0.015 <= searched < trained > 0.04, "a quarter of the minutes, and three quarters"
    assert "1 of 1: recall-twin with gru" in capsys.readouterr().out
    assert (tmp_path / "leaderboard.md").exists()
    written = {path: path.stat().st_mtime_ns for path in cell.rglob("*")}
    assert suite.main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in cell.rglob("*")} == written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cores", "gruu"], "unknown core 'gruu'; did you mean: gru"),
        (["--tasks", "cpoy"], "unknown task 'cpoy'; did you mean: copy"),
        (["--task-args", "recal.delay=3"], "unknown task 'recal'; did you mean: recall"),
        (["--task-args", "recall.dealy=3"], "task 'recall' has no parameter 'dealy'; did you mean: delay"),
        (["--lrs", "-1"], "lrs is -1.0; allowed: above 0"),
        (["--core", "gru"], "unknown flag '--core'; did you mean: --cores"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run(["suite", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_suites_folder_is_refused(tmp_path, capsys):
    (tmp_path / "suite.json").write_text(json.dumps({"minutes": 1.0}))
    with pytest.raises(SystemExit) as stop:
        run(["suite", "--cores", "gru", "--tasks", "copy", "--minutes", "2", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "contains a suite with minutes = 1.0, not 2.0; choose another --out" in capsys.readouterr().err


def test_a_suite_without_a_result_says_why(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("ab" * 400)
    words = ["suite", "--cores", "gru", "--tasks", "text-character", "--minutes", "0.01", "--lrs", "1"]
    words += ["--task-args", f"text_character.path={text}", "--out", str(tmp_path / "out")]
    run_dir = tmp_path / "out" / "text-character" / "gru" / "lr-1"
    run_dir.mkdir(parents=True)
    (run_dir / "somebody.txt").write_text("not a run")
    with pytest.raises(SystemExit) as stop:
        run(words)
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("rl-probe: text-character with gru: ")
    assert err.count("\n") == 1


def started(tmp_path: Path) -> "tuple[subprocess.Popen[str], psutil.Process]":
    """A suite of two cells, one at a time, and the probe at work."""
    words = ["suite", "--cores", "gru", "lstm", "--tasks", "recall-twin", "--minutes", "0.1", "--jobs", "1"]
    words += ["--lrs", "0.01", "--test-sequences", "128", "--out", str(tmp_path)]
    tool = str(Path(sys.executable).with_name("rl-probe"))
    pipe = subprocess.PIPE
    process = subprocess.Popen([tool, *words], stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    deadline = time.monotonic() + 180
    while not list(tmp_path.glob("recall-twin/gru/*/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (child,) = psutil.Process(process.pid).children()
    return process, child


@pytest.mark.nightly
def test_ctrl_c_ends_the_whole_suite(tmp_path: Path) -> None:
    process, _ = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "recall-twin/lstm").exists()


@pytest.mark.nightly
def test_a_cell_that_is_stopped_is_named_and_no_result_of_it_is_kept(tmp_path: Path) -> None:
    process, child = started(tmp_path)
    child.terminate()
    _, said = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "rl-probe: recall-twin with gru: stopped" in said
    assert not (tmp_path / "recall-twin/gru/result.json").exists()
    assert (tmp_path / "recall-twin/lstm/result.json").exists()
