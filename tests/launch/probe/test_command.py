"""rl-probe: a run from words to a result, exact resume, and a user's mistakes in one line."""

import json

import pytest

from engram.launch.entry import rl_probe as run
from engram.learners import checkpoints
from runs import rows

TINY = ["--core", "lstm", "--core-args", "hidden_size=8", "--batch-size", "4", "--test-sequences", "128"]


@pytest.fixture
def probe(capsys, monkeypatch):
    """Runs the command: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*words):
        with pytest.raises(SystemExit) as stop:
            run([str(word) for word in words])
        shown = capsys.readouterr()
        return stop.value.code, shown.out, shown.err

    return command


def test_a_probe_ends_with_its_result_beside_chance_and_the_published_number(probe, tmp_path):
    path = tmp_path / "run"
    code, out, _ = probe(
        "recall", *TINY, "--task-args", "delay=[1,4]", "--updates", 6, "--log-every", 2, "--run-dir", path
    )
    assert code == 0
    assert "recall with lstm (736 parameters in the core): 6 updates in" in out
    assert [line.split()[0] for line in out.splitlines() if "delay=" in line] == ["delay=1", "delay=2", "delay=4"]
    assert "chance      12.50%" in out
    assert "published  -" in out
    result = json.loads((path / "result.json").read_text())
    assert [each["sequences"] for each in result["tests"]] == [128] * 3
    assert result["accuracy"] == pytest.approx(sum(each["accuracy"] for each in result["tests"]) / 3)
    assert result["tests"][0]["low"] < result["tests"][0]["accuracy"] < result["tests"][0]["high"]
    assert [row["step"] for row in rows(path)] == [2 * 4 * 6, 4 * 4 * 6, 6 * 4 * 6]
    assert {"loss/cross_entropy", "probe/accuracy", "learner/grad_norm"} <= set(rows(path)[0]["metrics"])
    assert list((path / "tensorboard").iterdir())


@pytest.mark.parametrize("task", ["copy", "temporal-order"])
def test_a_resumed_run_is_bit_for_bit_the_run_without_a_stop(probe, tmp_path, task):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert probe(task, *TINY, "--updates", 5, "--log-every", 1, "--run-dir", whole)[0] == 0
    assert probe(task, *TINY, "--updates", 3, "--log-every", 1, "--run-dir", halves)[0] == 0
    assert probe("--resume", halves, "--updates", 5)[0] == 0
    ours, wanted = (checkpoints.load(checkpoints.latest(path / "checkpoints")) for path in (halves, whole))
    assert flat(ours["learner"]) == flat(wanted["learner"])
    timeless = [
        [{k: v for k, v in row["metrics"].items() if not k.startswith("perf/")} for row in rows(path)]
        for path in (halves, whole)
    ]
    assert timeless[0] == timeless[1]
    accuracy = [json.loads((path / "result.json").read_text())["accuracy"] for path in (halves, whole)]
    assert accuracy[0] == accuracy[1]


def flat(value):
    """Nested state as comparable plain values."""
    if isinstance(value, dict):
        return {str(key): flat(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [flat(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the task is missing; expected: rl-probe TASK or rl-probe --list"),
        (("recal",), "unknown task 'recal'; did you mean: recall"),
        (("recall", "--core", "lstn"), "unknown core 'lstn'; did you mean: lstm"),
        (
            ("recall", "--core-args", "hiden_size=3"),
            "core 'lstm' has no option 'hiden_size'; did you mean: hidden_size",
        ),
        (("recall", "--task-args", "dealy=3"), "task 'recall' has no parameter 'dealy'; did you mean: delay"),
        (("recall", "--task-args", "delay=-3"), "delay is -3; allowed: at least 0"),
        (("recall", "--update", "3"), "unknown flag '--update'; did you mean: --updates"),
        (("recall", "--device", "gpu"), "device is 'gpu'; allowed: auto, cpu, cuda, cuda:N"),
        (("--resume", "nowhere"), "nowhere contains no run"),
        (("recall", "--head-layers", "100000"), "head_layers is 100000; allowed: 0..1000"),
        (("recall", "--head-layers", "2", "--head-size", "1000000"), "out of memory: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(probe, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = probe(*words)
    assert code == 2
    assert err.startswith(f"rl-probe: {message}"), err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_resume_changes_only_what_may_be_changed(probe, tmp_path):
    assert probe("copy", *TINY, "--updates", 1, "--run-dir", tmp_path / "run")[0] == 0
    code, _, err = probe("--resume", tmp_path / "run", "--lr", "0.1")
    assert code == 2
    assert "was trained with learner.lr = 0.001, not 0.1; --resume can change: checkpoint_every" in err


def test_resume_keeps_nothing_of_a_mistake(probe, tmp_path):
    path = tmp_path / "run"
    assert probe("copy", *TINY, "--updates", 1, "--run-dir", path)[0] == 0
    before = (path / "config.toml").read_text()
    code, _, err = probe("--resume", path, "--device", "cuda:99", "--updates", 2)
    assert code == 2
    assert "cuda:99" in err
    assert (path / "config.toml").read_text() == before
    assert probe("--resume", path, "--updates", 2)[0] == 0
    assert "updates = 2" in (path / "config.toml").read_text()


def test_the_list_names_every_task_with_its_chance(probe):
    code, out, _ = probe("--list")
    assert code == 0
    for words in ("nth-farthest", "dictionary-16-12", "RMC 91%", "12.5%", "recall-twin"):
        assert words in out
