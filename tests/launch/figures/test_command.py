"""`rl-reproduce`: the data files, and one small figure from training to plot."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import figures_page
import psutil
import pytest
import torch

from engram.base.errors import EngramError
from engram.launch.config.plain import differences
from engram.launch.config.run_config import RunConfig
from engram.launch.figures import command, figure, results
from engram.launch.figures.figure import FigureRun
from engram.launch.metrics.rows import read_log
from engram.launch.runs import saved
from engram.launch.train import command as train
from engram.learners import checkpoints
from runs import family, gone, wait_for

SMALL = '''
title = "A small figure"
paper = "Somebody"
place = "figure 1"
measure = "return"
episodes = 20

[[published]]
label = "best"
value = 1.0
note = "at the end"

[full]
arguments = """
    --env boxworld-twin --env-args path_lengths=1 num_distractors=0 max_steps=30 --local
    --envs-per-actor 8 --envs-per-update 8 --unroll-length 10 --core-args hidden_size=8"""
seeds = [3]
steps_per_second = 1000
stop = "after its steps"
[full.curves]
lstm = "--core lstm --conv-channels 2 --total-steps 16000 --log-every 1000 --checkpoint-every 0.2"
[quick]
arguments = """--env cued-catch --env-args num_trials=1 initial_cue_duration=2 reward_free_trials=0 --local
    --envs-per-actor 8 --envs-per-update 8 --unroll-length 10 --core-args hidden_size=8"""
seeds = [3]
steps_per_second = 1000
stop = "after its steps"
note = "One trial."
[quick.curves]
lstm = "--core lstm --conv-channels 2 --total-steps 2000 --eval-every 400 --eval-episodes 4"
'''


_ANY = command.ReproduceConfig(figure="mine")


def reproduce(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and output of `rl-reproduce` in this process; the runs and evaluations that it starts are processes."""
    capsys.readouterr()
    code = command.main([str(word) for word in words])
    return code, " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of the small figure's quick variant; copy it."""
    run = tmp_path_factory.mktemp("trained") / "lstm-3"
    curve = figure.parse("small", SMALL).settings["quick"].curves[0]
    assert train.main([*curve.arguments, "--seed", "3", "--run-dir", str(run)]) == 0
    return run


@pytest.mark.parametrize("name", figure.names())
def test_every_data_file_is_a_figure_whose_curves_can_be_trained(name: str) -> None:
    found = figure.load(name)
    assert all((found.title, found.paper, found.place))
    assert found.published or "could not be found" in found.settings["full"].note
    tried = set[str]()
    for setting in found.settings.values():
        assert setting.core_hours
        assert setting.stop != figure.Setting.stop
        assert setting.steps_per_second
        for curve in setting.curves:
            assert curve.config.total_steps < 1e9, f"{curve.name} has no length of its own"
            parts = repr((curve.config.env, curve.config.env_args, curve.config.levels, curve.config.agent))
            if parts in tried:
                continue
            tried.add(parts)
            factory = curve.config.factory()
            environment = factory.make_batch(num_envs=1)
            factory.check_levels(environment)
            with torch.device("meta"):
                agent = factory.make_agent(environment)
            assert agent.core.output_size > 0, curve.name
            environment.close()
    if "quick" in found.settings:
        hours = found.settings["quick"].core_hours
        assert hours
        assert hours / 2 <= (120 if found.settings["quick"].curves[0].task else 20) / 60


def test_an_unknown_figure_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(EngramError, match=r"'grph'.*graph"):
        figure.load("grph")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 'x'", r"'mine' is wrong: key full\.curves is missing; expected: a table with flags of rl-train"),
        ("[full]\nseeds = [1]", r"key full\.curves is missing"),
        ("mesure = 'return'", r"unknown setting 'mesure'; did you mean: measure\?"),
        ("[full]\nargument = ''\ncurves = {a = ''}", r"unknown setting 'full\.argument'"),
        ("[full]\nseeds = 3\ncurves = {a = ''}", r"full\.seeds is 3; expected tuple"),
        ("[full]\nseeds = ['x']\ncurves = {a = ''}", r"full\.seeds\[0\] is 'x'; expected int"),
        ("[full]\ncurves = {a = 3}", r"full\.curves\.a is 3; expected str"),
        ("full = 3", r"key full\.curves is missing"),
        ("episodes = 0", r"episodes is 0; allowed: at least 1"),
        ("[[published]]\nlabel = 'x'\n[full]\ncurves = {a = ''}", r"missing 1 required keyword-only argument: 'value'"),
        ("= 1", r"'mine' is wrong: "),
    ],
)
def test_a_wrong_data_file_is_named_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(EngramError, match=message) as problem:
        figure.parse("mine", text)
    assert "\n" not in str(problem.value)


def test_a_data_file_needs_nothing_but_curves() -> None:
    small = figure.parse("mine", "[full.curves]\nlstm = '--env t-maze --core lstm --total-steps 1000'")
    assert (small.title, small.measure, small.episodes, small.settings["full"].seeds) == ("mine", "return", 1000, (1,))
    line = command.forecast(small, command.chosen_runs(small, _ANY), _ANY)
    assert line == "mine: 1 runs, 0.0 M steps to go."
    run = {"steps": 1000, "planned_steps": 1000, "seconds": 1.0, "evaluation": None}
    document = {"size": "full", "measure": "return", "source": small.source, "curves": {"lstm": {"runs": {"1": run}}}}
    page_text = figures_page.text("results", small, {"full": document})
    assert "Paper" not in page_text
    assert "Stopping rule: A run ends at its `--total-steps`." in page_text


def test_a_curve_that_the_figure_does_not_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    with pytest.raises(EngramError, match=r"no curve 'rmc'; allowed: lstm"):
        command.main([str(file), "--curves", "rmc"])


def test_a_figure_that_asks_for_more_steps_is_continued_evaluated_and_drawn(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, results, run = tmp_path / "small.toml", tmp_path / "results", tmp_path / "runs/small/quick/lstm-3"
    longer = SMALL.replace("steps 2000", "steps 2600")
    file.write_text(longer)
    shutil.copytree(trained, run)
    words = [file, "--quick", "--runs", tmp_path / "runs", "--results", results, "--jobs", 1]
    code, said = reproduce(capsys, *words)
    assert code == 0
    assert re.search(r"lstm, seed 3: finished at 2,6\d+ of 2,600 steps, return", said)
    document = json.loads((results / "small-quick.json").read_text())
    lstm = document["curves"]["lstm"]["runs"]["3"]
    assert lstm["steps"] >= 2600
    before = [row["step"] for row in read_log(trained / "metrics.jsonl")]
    after = [row["step"] for row in read_log(run / "metrics.jsonl")]
    assert after == sorted(set(after))
    assert after[: len(before)] == before  # continued, not started again
    newest = checkpoints.latest(run / "checkpoints")
    assert newest
    assert lstm["evaluation"]["episodes"] == 20
    assert lstm["evaluation"]["step"] == checkpoints.step_of(newest)
    assert lstm["evaluation"]["weights_step"] == saved.read(newest)["best"].step
    assert (results / "small-quick.png").read_bytes().startswith(b"\x89PNG")

    page = tmp_path / "page.md"
    page.write_text("# Results\n\nWords that stay.\n")
    for _ in range(2):  # the second time in its place
        figures_page.write(page, results, figure.load(str(file)), {"full": document, "quick": document})
    text = page.read_text()
    assert text.startswith("# Results\n\nWords that stay.\n")
    assert text.count("| lstm | 3 |") == 1
    assert "`rl-reproduce small --quick`" in text
    assert "(results/small-quick.png)). One trial." in " ".join(text.split())

    file.write_text(longer.replace("--core lstm", "--core lstm --lr 1"))
    with pytest.raises(EngramError, match=r"lstm-3 was trained with learner.lr = 0.0005, but curve lstm now has 1.0"):
        reproduce(capsys, *words)


def test_the_page_says_whose_weights_were_played() -> None:
    small = figure.parse("small", SMALL)
    evaluation = {"mean": 0.5, "low": 0.4, "high": 0.6, "episodes": 20, "step": 20_000_000, "weights_step": 15_500_000}
    run = {"steps": 20_000_000, "planned_steps": 20_000_000, "seconds": 3600.0, "evaluation": evaluation}
    document = {"size": "full", "measure": "return", "source": "s", "curves": {"a": {"runs": {"1": run}}}}
    assert "| 20.0 M, the weights of 15.5 M |" in figures_page.text("results", small, {"full": document})
    evaluation["weights_step"] = 20_000_000
    assert "the weights of" not in figures_page.text("results", small, {"full": document})


def test_an_evaluation_that_fails_is_named_and_does_not_hide_the_others(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, runs, results = tmp_path / "small.toml", tmp_path / "runs", tmp_path / "results"
    lines = SMALL.splitlines(keepends=True)
    text = "".join(lines) + lines[-1].replace("lstm =", "other =")
    file.write_text(text)
    words = [file, "--quick", "--runs", runs, "--results", results, "--collect"]
    for name in ("lstm-3", "other-3"):
        shutil.copytree(trained, runs / "small/quick" / name)

    blocked = runs / "small/quick/.lstm-3.json"  # rl-eval cannot write here
    blocked.mkdir()
    code, said = reproduce(capsys, *words)
    assert code == 1
    assert "lstm, seed 3: rl-eval ended with exit code" in said
    assert "other, seed 3: evaluated at" in said
    recorded = json.loads((results / "small-quick.json").read_text())["curves"]
    assert recorded["other"]["runs"]["3"]["evaluation"]

    blocked.rmdir()
    file.write_text(text.replace('measure = "return"', 'measure = "score"'))
    code, said = reproduce(capsys, *words, "--curves", "lstm", "--results", tmp_path / "score")
    assert code == 1
    assert "measure is 'score'; rl-eval reports: return, length" in said


def test_a_run_that_ended_early_says_so_on_the_page() -> None:
    small = figure.parse("small", SMALL)
    run = {"steps": 10_000_000, "planned_steps": 60_000_000, "seconds": 3600.0, "evaluation": None}
    document = {
        "figure": "small",
        "size": "full",
        "measure": "return",
        "source": "s",
        "curves": {"a": {"runs": {"1": run}}},
    }
    assert "10.0 M of 60.0 M: stopped early" in figures_page.text("results", small, {"full": document})


def test_no_two_curves_of_a_picture_look_the_same() -> None:
    assert len(set(results.STYLES)) == 30


@pytest.mark.parametrize(
    ("words", "lr", "stays"),
    [
        ("", None, True),  # of before settings were kept
        (" --lr 1e-3", None, False),
        ("", 0, True),
        (" --core lstm", 0, True),  # other words for the same
        ("", 2e-3, False),  # what a preset stands for is another thing now
    ],
)
def test_recorded_runs_whose_directories_are_gone_stay_unless_their_settings_changed(
    words: str, lr: float | None, stays: bool
) -> None:
    small = figure.parse("small", SMALL)
    curve = small.settings["full"].curves[0]
    command = " ".join(("rl-train", *curve.arguments))
    kept = {"command": command + words, "runs": {"3": {"steps": 7}}}
    if lr is not None:
        settings = {name: now for name, _, now in differences(RunConfig(), curve.config)}
        kept["settings"] = json.loads(json.dumps(settings | ({"learner.lr": lr} if lr else {})))
    recorded = {"curves": {"lstm": kept, "gone": {"command": "", "runs": {}}}}
    document = results.collect(small, "full", [], recorded)
    assert document["curves"] == ({"lstm": kept | {"command": command}} if stays else {})
    assert results.outdated(small, "full", recorded) == ["lstm"] * (not stays) + ["gone"]


def test_a_run_that_was_killed_before_its_first_checkpoint_goes_on(trained: Path, tmp_path: Path) -> None:
    small = figure.parse("small", SMALL)
    curve = small.settings["quick"].curves[0]
    run = FigureRun(tmp_path / "lstm-3", "lstm, seed 3", small, curve, 3)
    shutil.copytree(trained, run.folder)
    shutil.rmtree(run.folder / "checkpoints")
    assert run.begun
    assert run.checkpoint() is None
    run.check()
    assert train.main(run.command()[1:]) == 0
    assert run.checkpoint_step() >= 2000


def test_a_recorded_run_that_went_further_than_the_one_here_stays(tmp_path: Path) -> None:
    small = figure.parse("small", SMALL)
    curve = small.settings["full"].curves[0]
    run = FigureRun(tmp_path / "lstm-3", "lstm, seed 3", small, curve, 3)
    run.folder.mkdir()
    row = {"step": 10, "time": 1.0, "wall_s": 1.0, "metrics": {"episode/return": 0.5}}
    (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    here = results.collect(small, "full", [run], {})["curves"]["lstm"]["runs"]["3"]
    assert here["steps"] == 10
    for steps, stays in ((11, True), (9, False)):
        earlier = {"command": " ".join(("rl-train", *curve.arguments)), "runs": {"3": {"steps": steps}}}
        found = results.collect(small, "full", [run], {"curves": {"lstm": earlier}})["curves"]["lstm"]["runs"]["3"]
        assert found == ({"steps": steps} if stays else here)

    row["step"] = curve.steps + 1  # a finished run replaces the recorded one, whose last batch was larger
    (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    earlier = {"command": " ".join(("rl-train", *curve.arguments)), "runs": {"3": {"steps": curve.steps + 2}}}
    found = results.collect(small, "full", [run], {"curves": {"lstm": earlier}})["curves"]["lstm"]["runs"]["3"]
    assert found["steps"] == curve.steps + 1


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    words = [Path(sys.executable).with_name("rl-reproduce"), file, "--runs", tmp_path / "runs", "--jobs", "1"]
    process = subprocess.Popen([*words, "--results", tmp_path / "results"], stdout=subprocess.PIPE, text=True)
    everyone: list[psutil.Process] = []
    try:
        wait_for(lambda: list((tmp_path / "runs").glob("small/full/lstm-3/config.toml")), seconds=180)
        everyone = family(process.pid)
        process.send_signal(number)
        said, _ = process.communicate(timeout=180)
        wait_for(lambda: gone(everyone), seconds=60)
    finally:
        for each in everyone:
            if each.is_running():
                each.kill()
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert "run the same command to continue" in said
        assert not (tmp_path / "results").exists()
