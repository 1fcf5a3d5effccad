"""Views of a population: lineage in words and as a plot, TensorBoard, tables, replays."""

import io
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from engram.launch import entry
from engram.launch.population.command import Lineage, descent, plot
from engram.launch.population.host import spread
from engram.launch.train import command as train
from engram.learners import checkpoints

Event = dict[str, Any]
METRICS_PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()


def start(members: int = 3, **others: Any) -> Event:
    values = [{"learner.lr": 1e-4 * (i + 1)} for i in range(members)]
    return {"event": "start", "step": 0, "members": members, "values": values} | others


def evaluation(step: int, generation: int, scores: list[float], copies: Mapping[int, int] = {}) -> Event:
    """An evaluation of all members, each with one return, and what it decides: member -> source."""
    decisions = [
        {
            "member": i,
            "opponent": copies.get(i),
            "copy": i in copies,
            "reason": "",
            "mean": score,
            "opponent_mean": None,
        }
        for i, score in enumerate(scores)
    ]
    return {
        "event": "evaluation",
        "step": step,
        "generation": generation,
        "evaluated": list(range(len(scores))),
        "scores": [[score] for score in scores],
        "decisions": decisions,
    }


def copy(step: int, generation: int, member: int, source: int) -> Event:
    return {"event": "copy", "step": step, "generation": generation, "member": member, "from": source, "effective": {}}


# -- lineage -----------------------------------------------------------------------------------------------------------


def test_descent_goes_back_through_every_copy() -> None:
    lineage = Lineage(
        [
            start(),
            evaluation(1000, 1, [1.0, 2.0, 3.0], {0: 1}),
            copy(1000, 1, 0, 1),
            evaluation(2000, 2, [5.0, 2.0, 3.0], {2: 0}),
            copy(2000, 2, 2, 0),
        ]
    )
    assert descent(lineage, 2) == "<- 0 (at 2k) <- 1 (at 1k)"
    assert descent(lineage, 1) == "its own"
    assert [lineage.score(i) for i in range(3)] == [5.0, 2.0, 5.0]
    assert lineage.best() == 0, "of a copy and its source, the source"


def test_copies_of_one_evaluation_are_meant_at_once() -> None:
    """0 takes 1's weights of before, whether 1 takes 2's before or after that."""
    for order in ([(0, 1), (1, 2)], [(1, 2), (0, 1)]):
        copies = [copy(1000, 1, *each) for each in order]
        lineage = Lineage([start(), evaluation(1000, 1, [1.0, 2.0, 3.0], {0: 1, 1: 2}), *copies])
        assert [lineage.ancestry(i)[-1].member for i in range(3)] == [1, 2, 2]


def test_a_copy_without_its_evaluation_takes_the_last_weights_of_its_source() -> None:
    """As in a log whose line of the evaluation is lost."""
    lineage = Lineage([start(), evaluation(1000, 1, [1.0, 2.0, 3.0]), copy(2000, 2, 0, 2)])
    assert descent(lineage, 0) == "<- 2 (at 2k)"
    assert [lineage.score(i) for i in range(3)] == [3.0, 2.0, 3.0]


def test_a_long_descent_is_told_by_its_ends() -> None:
    events = [start(2)]
    for generation in range(1, 21):
        target = generation % 2
        step = 1000 * generation
        events += [
            evaluation(step, generation, [0.0, 0.0], {target: 1 - target}),
            copy(step, generation, target, 1 - target),
        ]
    told = descent(Lineage(events), 0)
    assert told.startswith("<- 1 (at 20k) <- 0 (at 19k)")
    assert "<- 13 more" in told
    assert told.endswith("<- 0 (at 1k)")


# -- plot and TensorBoard ---------------------------------------------------------------------------------------------


def colors(scores: list[float]) -> set[tuple[int, ...]]:
    """The colors in the plot of a population judged once in the middle of its life."""
    events = [start(), evaluation(1000, 1, scores, {0: 2}), copy(1000, 1, 0, 2)]
    image = np.asarray(Image.open(io.BytesIO(plot(Lineage(events)))).convert("RGB"))
    return set(map(tuple, image[:, : image.shape[1] * 3 // 4].reshape(-1, 3).tolist()))  # without the color bar


def test_the_colors_of_the_plot_follow_the_scores() -> None:
    lowest, highest = (68, 1, 84), (253, 231, 37)  # the two ends of viridis
    assert {lowest, highest} <= colors([0.0, 0.5, 1.0])
    assert not {lowest, highest} & colors([math.nan, math.nan, math.nan])


def loaded(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "images": 0}).Reload()


@pytest.mark.parametrize(
    ("returns", "expected"),
    [([], {}), ([None, math.nan], {}), ([3.0, math.nan, 1.0, None], {"best": 3.0, "median": 2.0, "worst": 1.0})],
)
def test_spread_is_of_the_known_returns(returns: list[float | None], expected: dict[str, float]) -> None:
    assert spread(returns) == {f"population/{name}_return": x for name, x in expected.items()}


# -- real runs ---------------------------------------------------------------------------------------------------------

RUN = [
    *("--env", "pomdp-graph", "--core", "lstm", "--core-args", "hidden_size=8", "--local", "--seed", "3"),
    *("--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "10", "--log-every", "200"),
]
POPULATION = [
    *("--population", "3", "--pbt.warmup", "8", "--pbt.interval", "8", "--pbt.window", "5", "--pbt.p-value", "0.6"),
    *("--pbt.explore", "learner.lr=loguniform(1e-4,1e-2)", "--total-steps", "1500"),
]


def trained(folder: Path, *words: str) -> Path:
    assert train.main([*RUN, "--run-dir", str(folder / "run"), *words]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def truncation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("truncation"), *POPULATION, "--pbt.scheme", "truncation")


def command(run: Callable[[list[str]], None], *words: object) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def log(run: Path) -> list[Event]:
    return [json.loads(line) for line in (run / "population.jsonl").read_text().splitlines()]


def line_of(run: Path, kind: str) -> int:
    """Index of the last event of a kind."""
    return max(i for i, event in enumerate(log(run)) if event["event"] == kind)


def with_log(run: Path, folder: Path, events: list[Event]) -> Path:
    """A run with another log."""
    (folder / "config.toml").write_bytes((run / "config.toml").read_bytes())
    (folder / "population.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.parametrize("scheme", ["population_run", "truncation"])
def test_a_real_log_replays(scheme: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    run = request.getfixturevalue(scheme)
    assert {"start", "evaluation", "copy"} <= {event["event"] for event in log(run)}
    assert command(entry.rl_population, run, "--replay") == 0
    evaluations = sum(event["event"] == "evaluation" for event in log(run))
    assert f"of {evaluations} evaluations" in capsys.readouterr().out


def change_opponent(events: list[Event]) -> tuple[int, int]:
    """Give the last decision another opponent; its line from 0 and its member."""
    i = max(i for i, event in enumerate(events) if event["event"] == "evaluation")
    decision = events[i]["decisions"][-1]
    decision["opponent"] = (decision["member"] + 1 + (decision["opponent"] == (decision["member"] + 1) % 3)) % 3
    return i, decision["member"]


def change_score(events: list[Event]) -> tuple[int, int]:
    i = max(i for i, event in enumerate(events) if event["event"] == "evaluation")
    member = events[i]["evaluated"][0]
    events[i]["scores"][member][0] += 1000.0
    return i, member


def change_effective(events: list[Event]) -> tuple[int, int]:
    i = max(i for i, event in enumerate(events) if event["event"] == "copy")
    events[i]["effective"]["learner.lr"] *= 1.0001
    return i, events[i]["member"]


def change_source(events: list[Event]) -> tuple[int, int]:
    i = max(i for i, event in enumerate(events) if event["event"] == "copy")
    events[i]["from"] = 3 - events[i]["from"] - events[i]["member"]
    return i, events[i]["member"]


def change_first_value(events: list[Event]) -> tuple[int, int]:
    events[0]["values"][1]["learner.lr"] = 0.5
    return 0, 1


def leave_out_a_copy(events: list[Event]) -> tuple[int, int]:
    """The first one; something follows it, and the evaluation before it decided it."""
    i = min(i for i, event in enumerate(events) if event["event"] == "copy")
    member = events.pop(i)["member"]
    return max(k for k in range(i) if events[k]["event"] == "evaluation"), member


def copy_without_a_decision(events: list[Event]) -> tuple[int, int]:
    events.insert(1, copy(0, 1, 2, 0) | {"time": 0.0, "effective": dict(events[0]["values"][2])})
    return 1, 2


@pytest.mark.parametrize(
    "tamper",
    [
        change_opponent,
        change_score,
        change_effective,
        change_source,
        change_first_value,
        leave_out_a_copy,
        copy_without_a_decision,
    ],
)
@pytest.mark.parametrize("scheme", ["population_run", "truncation"])
def test_a_changed_log_is_found_out(
    tamper: Callable[[list[Event]], tuple[int, int]],
    scheme: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = request.getfixturevalue(scheme)
    events = log(run)
    index, member = tamper(events)
    assert command(entry.rl_population, with_log(run, tmp_path, events), "--replay") == 1
    said = capsys.readouterr().out.splitlines()
    assert any(f"line {index + 1}, member {member}: " in line for line in said), said
    assert "disagreement" in said[-1]


def test_a_missing_evaluation_is_found_out(
    population_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [event for event in log(population_run) if event.get("generation") != 1]
    assert command(entry.rl_population, with_log(population_run, tmp_path, events), "--replay") == 1
    assert "line 2: generation is 2 in the log, 1 by counting" in capsys.readouterr().out


def test_a_log_with_a_removed_setting_is_read(tmp_path: Path, population_run: Path) -> None:
    first, *events = log(population_run)
    first["pbt"]["patience"] = 20
    assert command(entry.rl_population, with_log(population_run, tmp_path, [first, *events]), "--replay") == 0


def test_what_a_power_failure_leaves_of_a_line_is_no_event(population_run: Path, tmp_path: Path) -> None:
    run = with_log(population_run, tmp_path, log(population_run))
    with (run / "population.jsonl").open("a") as file:
        file.write('{"event": "evalu')
    assert command(entry.rl_population, run, "--replay") == 0


def test_the_command_shows_members_copies_and_lineage(
    truncation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lineage.png"
    assert command(entry.rl_population, truncation, "--plot", file) == 0
    said = capsys.readouterr().out
    last = log(truncation)[line_of(truncation, "copy")]
    assert f"{last['member']} <- {last['from']}" in said
    assert f"{last['effective']['learner.lr']:.3g}" in said
    assert "3 members, truncation, seed 3" in " ".join(said.split())
    assert Image.open(file).format == "PNG"


def test_a_population_without_an_evaluation_shows_no_numbers_of_one(
    truncation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_log(truncation, tmp_path, log(truncation)[:1])
    assert command(entry.rl_population, run) == 0
    said = capsys.readouterr().out
    assert "not compared yet" in said
    assert [line.split()[:4] for line in said.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"])] == [
        [str(member), "-", "0", "0"] for member in range(3)
    ]


def test_every_member_has_curves_settings_and_a_session_in_tensorboard(truncation: Path) -> None:
    values = log(truncation)[0]["values"]
    for member in range(3):
        found = loaded(truncation / "members" / str(member))
        tags = found.Tags()["scalars"]
        assert {"episode/return", "population/learner.lr", "population/learner.lr_log10"} <= set(tags)
        assert "population/ancestor" not in tags, "smoothed, it would name nobody"
        assert found.Tensors("population/ancestor/text_summary")
        session = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        settings = HParamsPluginData.FromString(session).session_start_info.hparams
        assert settings["learner.lr"].number_value == pytest.approx(values[member]["learner.lr"])
    whole = loaded(truncation)
    assert {"population/best_return", "population/median_return", "population/worst_return"} <= set(
        whole.Tags()["scalars"]
    )


def test_metrics_of_a_population_are_those_of_the_glossary(truncation: Path) -> None:
    listed = set(re.findall(r"^\| `(population/[\w<>]+)`", METRICS_PAGE, re.MULTILINE))
    written: set[str] = set()
    for folder in (truncation, *(truncation / "members").iterdir()):
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            names = (re.sub(r"/learner\..*", "/<setting>", name) for name in json.loads(line)["metrics"])
            written |= {name for name in names if name.startswith("population/")}
    assert written == listed


# -- rl-eval -----------------------------------------------------------------------------------------------------------


def scores_of(run: Path) -> list[float]:
    newest = checkpoints.latest(run / "checkpoints")
    assert newest is not None
    members = checkpoints.load(newest)["members"]
    return [float(np.mean([episode[0] for episode in member["accumulator"]["window"]])) for member in members]


def test_rl_eval_takes_the_best_member_another_or_all(
    population_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = scores_of(population_run)
    best = int(np.argmax(scores))
    results: list[Any] = []
    for number, words in enumerate(([], ["--member", "0"], ["--all"])):
        file = tmp_path / f"{number}.json"
        assert command(entry.rl_eval, population_run, "--episodes", 20, "--json", file, *words) == 0
        results.append(json.loads(file.read_text()))
        said = " ".join(capsys.readouterr().out.split())
        if not words:
            assert f"member {best} of 3, the best: {scores[best]:.2f} in training" in said
        assert "[bold]" not in said
    assert results[0]["member"] == best
    assert results[1]["member"] == 0
    assert [member["member"] for member in results[2]["members"]] == [0, 1, 2]
    # The same levels and random numbers for all: alone or in a row, a member does the same.
    assert results[2]["members"][0]["all"] == results[1]["all"]
    assert results[2]["members"][best]["all"] == results[0]["all"]
    assert "low" in results[2]["members"][1]["all"]["return"]


@pytest.mark.parametrize(
    ("command_line", "words", "said"),
    [
        (entry.rl_population, ["{plain}"], "rl-population: {plain} is a run without a population"),
        (entry.rl_population, ["nowhere"], "nowhere contains no run"),
        (entry.rl_population, ["{broken}"], "population.jsonl line 2 is damaged"),
        (entry.rl_population, ["{plain}", "--reply"], "did you mean: --replay"),
        (entry.rl_eval, ["{population}", "--member", "3"], "member is 3; allowed: 0..2, or -1 for the best"),
        (entry.rl_eval, ["{plain}", "--all"], "no population"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    command_line: Callable[[list[str]], None],
    words: list[str],
    said: str,
    population_run: Path,
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = with_log(population_run, tmp_path, log(population_run)[:1])
    with (broken / "population.jsonl").open("a") as file:
        file.write("{nonsense}\n")
    places = {"plain": finished_run, "population": population_run, "broken": broken}
    capsys.readouterr()
    assert command(command_line, *(word.format_map(places) for word in words)) == 2
    lines = " ".join(capsys.readouterr().err.split())
    assert said.format_map(places) in lines
    assert "Traceback" not in lines
