"""rl-probe suite: cells become runs, the best learning rate goes on, finished cells stay, the table says it all."""

import json

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


def test_the_best_learning_rate_goes_on_and_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    """The calls are recorded and answered with results; runs themselves are tested in test_command.py."""
    calls = []

    def answer(words):
        calls.append(words)
        if words[0] != "--resume":
            path = tmp_path / "copy" / "gru" / f"lr-{words[words.index('--lr') + 1].rstrip('0').rstrip('.')}"
            path.mkdir()
            right = 0.9 if path.name == "lr-0.01" else 0.3
            (path / "result.json").write_text(json.dumps(result("copy", "gru", right) | {"valid_accuracy": right}))
        return ""

    monkeypatch.setattr(suite, "_call", answer)
    config = suite.SuiteConfig(cores=("gru",), tasks=("copy",), minutes=6, lrs=(0.1, 0.01, 0.2), out=str(tmp_path))
    assert suite.run_cell(config, suite.Cell("copy", "gru"), tmp_path) == ""
    assert [words[0] for words in calls] == ["copy", "copy", "copy", "--resume"]
    assert all(words[words.index("--minutes") + 1] == "1.0" for words in calls[:3])
    assert calls[3] == ["--resume", str(tmp_path / "copy" / "gru" / "lr-0.01"), "--minutes", "4.0"]
    assert json.loads((tmp_path / "copy" / "gru" / "result.json").read_text())["accuracy"] == 0.9
    assert suite.run_cell(config, suite.Cell("copy", "gru"), tmp_path) == ""
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cores", "gruu"], "unknown core 'gruu'; did you mean: gru"),
        (["--tasks", "cpoy"], "unknown task 'cpoy'; did you mean: copy"),
        (["--task-args", "recal.delay=3"], "unknown task 'recal'; did you mean: recall"),
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
    assert "holds a suite with minutes = 1.0, not 2.0; choose another --out" in capsys.readouterr().err
