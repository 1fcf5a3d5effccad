"""Populations as a user runs them: both schemes on several environments, exact resumption, kill -9, and mistakes."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.base.errors import EngramError
from engram.launch.entry import rl_train
from engram.launch.metrics.rows import read_log
from engram.launch.population import command as population_view
from engram.launch.train import command as train
from engram.launch.train.trainer import Trainer
from engram.learners import checkpoints
from runs import FOREVER, family, gone, start, steps_saved, stop, wait_for, workers

SMALL = ["--local", "--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "8", "--log-every", "1"]
CATCH = [
    *("--env", "cued-catch", "--env-args", "num_trials=2", "initial_cue_duration=1", "cue_duration=1"),
    *("reward_free_trials=0", "--core", "concrete", "--core-args", "pool_size=8", "num_pools=2", "viewport_size=4"),
    *("--embedding-size", "8", *SMALL),
]
GRAPH = [
    *("--env", "pomdp-graph", "--env-args", "num_steps=8"),
    *("--core", "fwm", "--core-args", "hidden_size=8", "memory_size=4", *SMALL),
]
RECALL = [
    *("--env", "sequence-recall", "--env-args", "sequence_length=1", "demo_light_on_frames=1", "timeout_frames=9"),
    *("--core", "gru", "--core-args", "hidden_size=8", *SMALL),
]
POPULATION = ["--population", 3, "--pbt.warmup", 8, "--pbt.interval", 6, "--pbt.window", 4]
EXPLORE = ["--pbt.explore", "learner.lr=loguniform(1e-4,1e-2)", "learner.entropy_cost=uniform(0,0.05)"]


TWO_ACTORS = ["--num-actors", 2, "--envs-per-update", 8]
"""An update in lockstep learns from one unroll of every actor."""


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


def events(run: Path, kind: str = "") -> list[dict[str, Any]]:
    """The population's log without what a clock says."""
    lines = [json.loads(line) for line in (run / "population.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time"} for line in lines if kind in ("", line["event"])]


def rows(run: Path) -> list[dict[str, Any]]:
    """A member's metrics by step, without what a clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {"step": line["step"]} | {k: v for k, v in line["metrics"].items() if not k.startswith("perf/")}
        for line in lines
    ]


def test_members_that_end_in_one_update_have_one_last_row(tmp_path: Path) -> None:
    """Its speed is that of all of them."""
    run = tmp_path / "run"
    assert run_train(*GRAPH, *POPULATION, "--pbt.together", "on", "--total-steps", 96, "--run-dir", run) == 0
    last, *_ = reversed([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    members = [read_log(run / "members" / str(member) / "metrics.jsonl")[-1] for member in range(3)]
    speeds = [row["perf/env_steps_per_second"] for row in members]
    assert last["metrics"]["perf/env_steps_per_second"] == pytest.approx(sum(speeds))


def newest(run: Path) -> dict[str, Any]:
    path = checkpoints.latest(run / "checkpoints")
    assert path is not None
    return checkpoints.load(path)


@pytest.mark.parametrize(
    ("task", "algorithm", "scheme"),
    [
        pytest.param(CATCH, "vtrace", "lp-rnn", id="catch-vtrace-lp-rnn"),
        pytest.param([*GRAPH, "--num-actors", 2, "--envs-per-update", 8], "a2c", "lp-rnn", id="graph-a2c-lp-rnn"),
        pytest.param(RECALL, "vtrace", "truncation", id="recall-vtrace-truncation"),
    ],
)
def test_every_scheme_algorithm_and_environment(tmp_path: Path, task: list[str], algorithm: str, scheme: str) -> None:
    """All members reach their last step together, and the log replays: every decision, every value."""
    words = [*task, "--algorithm", algorithm, *POPULATION, *EXPLORE, "--pbt.scheme", scheme, "--pbt.p-value", 0.6]
    assert run_train(*words, "--total-steps", 500, "--run-dir", tmp_path / "run") == 0
    run = tmp_path / "run"
    assert population_view.main([str(run), "--replay"]) == 0
    assert all(member["learner"]["steps"] >= 500 for member in newest(run)["members"])
    assert len(events(run, "evaluation")) >= 2
    for event in events(run, "evaluation"):
        assert max(event["member_steps"]) - min(event["member_steps"]) <= 2 * 8 * 4
    start = events(run, "start")[0]
    settings = [dict(values) for values in start["values"]]
    assert len({values["learner.lr"] for values in settings}) == 3
    for event in events(run, "copy"):
        settings[event["member"]] = event["effective"]
    for number, values in enumerate(settings):
        last = rows(run / "members" / str(number))[-1]
        assert {name: last[f"population/{name}"] for name in values} == values


def test_a_population_that_is_never_compared_is_reported_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--population", 2, "--pbt.warmup", 1000, "--pbt.window", 4, "--total-steps", 400]
    assert run_train(*GRAPH, *words, "--log-every", 100, "--run-dir", tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert "members were never compared: none finished 1,000 episodes; lower --pbt.warmup (1,000)" in said
    assert "  best return " in said
    assert population_view.main([str(tmp_path / "run")]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for member in range(2):
        last = rows(tmp_path / "run" / "members" / str(member))[-1]
        (line,) = [line for line in shown if line[:1] == [str(member)]]
        assert line[1:3] == [f"{last['episode/return']:.3f}", f"{last['step']:.0f}"]


def test_settings_of_an_algorithm_differ_between_members_and_are_really_used(tmp_path: Path) -> None:
    words = [*CATCH, "--algorithm", "ppo", "--normalize-returns", *POPULATION, "--pbt.scheme", "truncation"]
    words += ["--pbt.explore", "learner.clip=uniform(0.1,0.3)", "learner.epochs=choice(1,2,3)"]
    assert run_train(*words, "--total-steps", 300, "--run-dir", tmp_path / "run") == 0
    assert population_view.main([str(tmp_path / "run"), "--replay"]) == 0
    settings = [dict(values) for values in events(tmp_path / "run", "start")[0]["values"]]
    for event in events(tmp_path / "run", "copy"):
        settings[event["member"]] = event["effective"]
    for number, values in enumerate(settings):
        last = rows(tmp_path / "run" / "members" / str(number))[-1]
        assert {name: last[f"population/{name}"] for name in values} == values
        assert 0.1 <= values["learner.clip"] <= 0.3


@pytest.mark.parametrize(
    ("algorithm", "scheme", "together", "updates"),
    [
        ("a2c", "lp-rnn", "off", (13, 10)),
        ("vtrace", "truncation", "on", (4, 3)),
    ],
)
def test_a_run_stopped_between_evaluations_goes_on_bit_for_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    scheme: str,
    together: str,
    updates: tuple[int, int],
) -> None:
    """Stopped by a signal in the middle of a round of updates, twice; then as if it had never been stopped."""
    words = [*GRAPH, "--sync", "--algorithm", algorithm, *POPULATION, *EXPLORE, "--pbt.scheme", scheme]
    words += ["--pbt.p-value", 0.7, "--lr-schedule", "constant", *TWO_ACTORS]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words += ["--total-steps", 800, "--pbt.together", together]
    assert run_train(*words, "--run-dir", whole) == 0
    stop_after(monkeypatch, updates[0])
    assert run_train(*words, "--run-dir", parts) == 0
    stop_after(monkeypatch, updates[1])
    assert run_train("--resume", parts) == 0
    monkeypatch.undo()
    assert run_train("--resume", parts) == 0
    for member in range(3):
        place = f"members/{member}"
        assert rows(whole / place) == rows(parts / place)
    kept = [event for event in events(parts) if event["event"] != "resume"]
    assert kept == events(whole)
    assert len(events(whole, "copy")) > 0, "nothing was copied, so little is tested"
    stops = [event["step"] for event in events(parts, "resume")]
    evaluations = {event["step"] for event in events(parts, "evaluation")}
    assert together == "on" or not evaluations & set(stops), "stopped at an evaluation"
    ends = newest(whole), newest(parts)
    for part in ("members", "population", "actors", "torch_rng"):
        assert_equal(ends[0][part], ends[1][part], part)


def test_members_that_learn_together_learn_what_they_would_apart(tmp_path: Path) -> None:
    """The same environments, decisions and checkpoints' form; weights differ by rounding."""
    words = [*RECALL, "--sync", *POPULATION, *EXPLORE, "--optimizer", "rmsprop_tf", "--eps", 0.1, "--total-steps", 200]
    for together in ("on", "off"):
        assert run_train(*words, "--pbt.together", together, "--run-dir", tmp_path / together) == 0
    on, off = (newest(tmp_path / together)["members"] for together in ("on", "off"))
    for ours, theirs in zip(on, off, strict=True):
        assert ours["learner"].keys() == theirs["learner"].keys()
        assert ours["learner"]["steps"] == theirs["learner"]["steps"]
        for name, weights in theirs["learner"]["agent"].items():
            torch.testing.assert_close(ours["learner"]["agent"][name], weights, rtol=1e-3, atol=1e-5)
    decided = [[event["decisions"] for event in events(tmp_path / way, "evaluation")] for way in ("on", "off")]
    assert decided[0] == decided[1] != []


def stop_after(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """A signal reaches the next run after so many updates."""
    monkeypatch.undo()
    update, left = Trainer.update, [updates]

    def counted(self: Trainer) -> None:
        update(self)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "update", counted)


def assert_equal(a: Any, b: Any, place: str) -> None:
    """Two states hold the same, but for clocks."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a.keys() - {"wall", "timers", "acting"}:
            assert_equal(a[key], b[key], f"{place}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{place}/{i}")
    elif isinstance(a, torch.Tensor | np.ndarray):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True), place
    else:
        assert a == b, place


def test_a_population_that_begins_anew_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_train(*GRAPH, *POPULATION, "--total-steps", 100, "--run-dir", run)
    log = run / "population.jsonl"
    first = log.read_text()
    shutil.rmtree(run / "checkpoints")  # as if killed before there was one
    run_train("--resume", run)
    assert [event["step"] for event in events(run, "start")] == [0]
    assert (run / "population.abandoned.jsonl").read_text() == first


def test_events_after_the_checkpoint_are_set_aside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*GRAPH, "--sync", *POPULATION, "--lr-schedule", "constant"]
    run_train(*words, "--total-steps", 500, "--run-dir", run)
    log = run / "population.jsonl"
    written = log.read_text()
    # As after a crash: the log is ahead of the newest checkpoint, and its last line is torn.
    log.write_text(
        written + json.dumps({"event": "resume", "time": 1.0, "step": 10**9, "from_step": 1}) + "\n" + '{"event": "eva'
    )
    run_train("--resume", run, "--total-steps", 700)
    assert log.read_text().startswith(written)
    assert '"step": 1000000000' in (run / "population.abandoned.jsonl").read_text()
    assert population_view.main([str(run), "--replay"]) == 0


def test_config_file_repeats_a_population(tmp_path: Path) -> None:
    words = [*GRAPH, "--sync", *POPULATION, *EXPLORE, "--pbt.scheme", "truncation", "--pbt.factors", 0.5, 2]
    run_train(*words, "--total-steps", 300, "--run-dir", tmp_path / "a")
    assert run_train("--config", tmp_path / "a" / "config.toml", "--run-dir", tmp_path / "b") == 0
    assert events(tmp_path / "a") == events(tmp_path / "b")
    for member in range(3):
        assert rows(tmp_path / f"a/members/{member}") == rows(tmp_path / f"b/members/{member}")


def test_the_first_member_begins_as_a_run_without_a_population(tmp_path: Path) -> None:
    """Until the first evaluation, member 0 is the plain run: hosting changes nothing that is learned."""
    run_train(*GRAPH, "--sync", "--total-steps", 200, "--run-dir", tmp_path / "plain")
    run_train(*GRAPH, "--sync", "--total-steps", 200, "--population", 2, "--run-dir", tmp_path / "many")
    ours = [{k: v for k, v in row.items() if "population/" not in k} for row in rows(tmp_path / "many/members/0")]
    assert ours == rows(tmp_path / "plain")
    assert ours != [
        {k: v for k, v in row.items() if "population/" not in k} for row in rows(tmp_path / "many/members/1")
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--population", "1"], "population is 1; allowed: 0 (a single learner) or at least 2"),
        (["--population", "-3"], "population is -3"),
        (["--pbt.scheme", "truncation"], "population is 0; allowed with settings of pbt: at least 2"),
        (["--population", "1", "--pbt.interval", "9"], "population is 1"),
        (["--population", "2", "--pbt.explore", "learner.lrr=uniform(1,2)"], "did you mean: learner.lr"),
        (
            ["--population", "2", "--pbt.explore", "learner.lr=uniform(2,1)"],
            "is empty; allowed: LOW below HIGH",
        ),
        (
            ["--population", "2", "--pbt.explore", "learner.optimizer=choice(1,2)"],
            "learner.optimizer: not a numeric setting",
        ),
        (["--population", "2", "--pbt.window", "1"], "pbt.window is 1; allowed: at least 2"),
    ],
)
def test_a_mistake_exits_with_2_and_a_clear_line(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        rl_train([*words, "--local"])
    said = " ".join("".join(capfd.readouterr()).replace("│", " ").split())
    assert end.value.code == 2
    assert message in said
    assert "Traceback" not in said


def test_a_run_keeps_its_population(tmp_path: Path) -> None:
    run_train(*GRAPH, *POPULATION, "--total-steps", 100, "--run-dir", tmp_path / "run")
    with pytest.raises(EngramError, match=r"was trained with population = 3, not 4; --resume can change: "):
        run_train("--resume", tmp_path / "run", "--population", 4)
    with pytest.raises(EngramError, match=r"was trained with pbt\.interval = 6, not 7"):
        run_train("--resume", tmp_path / "run", "--pbt.interval", 7)
    with pytest.raises(EngramError, match=r"unknown flag '--pbt\.intervall'; did you mean: --pbt\.interval"):
        run_train(*GRAPH, *POPULATION, "--pbt.intervall", 7)


@pytest.mark.nightly
def test_a_population_on_ray_goes_on_after_kill_9_of_the_whole_tree(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*GRAPH, *POPULATION, *EXPLORE, "--no-local", *TWO_ACTORS, "--pbt.p-value", 0.6, "--log-every", 100]
    process = start(*words, *FOREVER, "--checkpoint-every", 0.5, "--run-dir", run)
    wait_for(lambda: steps_saved(run) and len(events(run, "evaluation")) > 3)
    assert len(workers(process.pid)) == 2, "not as many processes as without a population"
    tree = family(process.pid)
    for each in tree:
        each.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: gone(tree), seconds=90)

    before = newest(run)
    process = start("--resume", run, "--total-steps", 2 * 10**9)

    def all_went_on() -> bool:
        with contextlib.suppress(OSError, checkpoints.CheckpointError):  # older ones are removed meanwhile
            after = newest(run)
            pairs = zip(before["members"], after["members"], strict=True)
            further = all(new["learner"]["steps"] > old["learner"]["steps"] for old, new in pairs)
            return further and after["population"]["generation"] > before["population"]["generation"]
        return False

    wait_for(all_went_on)
    code, output = stop(process)
    assert code == 0, output
    assert population_view.main([str(run), "--replay"]) == 0
