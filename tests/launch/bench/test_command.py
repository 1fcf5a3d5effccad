"""rl-bench: the parts are what they are called, the ideal is arithmetic, and the real command is what is timed."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engram.agents.config import AgentConfig
from engram.base.errors import EngramError
from engram.base.processes import num_cores
from engram.launch.bench.command import measure, open_parts, speed_of_light, training_speed
from engram.launch.config.run_config import RunConfig
from engram.launch.entry import rl_bench as run
from engram.launch.metrics import provenance as machine
from process_tree import tree_memory

CPU = torch.device("cpu")
TINY = ["--core-args", "hidden_size=8", "--local", "--envs-per-actor", "8", "--envs-per-update", "4"]
TINY += ["--env-args", "path_lengths=1", "num_distractors=0", "max_steps=9"]


def tiny(core: str = "lstm") -> RunConfig:
    return RunConfig(
        env="boxworld",
        env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 9},
        agent=AgentConfig(core=core, core_args={"hidden_size": 8}),
        envs_per_actor=8,
        envs_per_update=4,
        unroll_length=10,
    )


def bench(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


# -- the ideal -------------------------------------------------------------------------------------------------------


def test_speed_of_light() -> None:
    parts = {"env": 1e-6, "infer": 4e-6, "learn": 20e-6}
    assert speed_of_light(**parts, cores=2, learner_has_device=False) == pytest.approx(2 / 25e-6)
    assert speed_of_light(**parts, cores=2, learner_has_device=True) == pytest.approx(1 / 20e-6)
    assert speed_of_light(**parts, cores=1, learner_has_device=True) == pytest.approx(1 / 20e-6)
    slow_actors = parts | {"learn": 1e-6}
    assert speed_of_light(**slow_actors, cores=2, learner_has_device=True) == pytest.approx(2 / 5e-6)


def test_measure_takes_turns_and_tells_seconds_per_step() -> None:
    calls: list[str] = []

    def sleeper(name: str, seconds: float, steps: float) -> Callable[[], float]:
        def do() -> float:
            calls.append(name)
            time.sleep(seconds)
            return steps

        return do

    times = measure({"short": sleeper("short", 0.01, 10), "long": sleeper("long", 0.02, 1)}, seconds=0.2, slices=4)
    assert times["short"] == pytest.approx(0.001, rel=0.5)
    assert times["long"] == pytest.approx(0.02, rel=0.5)
    turns = [name for name, before in zip(calls, [None, *calls[:-1]], strict=True) if name != before]
    assert turns == ["short", "long"] * 5, "a call of each that does not count, then four turns"


# -- the parts -------------------------------------------------------------------------------------------------------


def test_parts_count_no_step_whose_action_is_ignored() -> None:
    """Episodes last 10 steps here, so 1 row of 11 starts an episode and its action is ignored."""
    rows, envs = 10, 8
    with open_parts(tiny(), CPU) as work:
        assert work["env"]() == work["infer"]()
        assert work["env"]() / (rows * envs) == pytest.approx(10 / 11, rel=0.05)
        learned = [work["learn"]() for _ in range(12)]
    assert all(float(steps).is_integer() for steps in learned)
    assert np.mean(learned) / (rows * 4) == pytest.approx(10 / 11, rel=0.05)


def test_learning_changes_the_network_and_not_what_is_measured() -> None:
    with open_parts(tiny("feedforward"), CPU) as work:
        once = [work["learn"]() for _ in range(12)]
        again = [work["learn"]() for _ in range(12)]
    assert once == again, "the same batches in the same order"


# -- the command -----------------------------------------------------------------------------------------------------


def test_bench_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    words = ["--env", "boxworld", "--core", "lstm", *TINY]
    assert bench(*words, "--seconds", 1, "--json", file) == 0
    assert "reached by rl-train" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["command"] == ["rl-train", *map(str, words)]
    assert result["seed"] == 1
    assert result["configuration"]["envs_per_actor"] == 8
    rates, training = result["steps_per_second"], result["training"]
    assert rates["reached"] == pytest.approx(training["steps"] / training["seconds"], rel=1e-3)
    assert training["seconds"] <= 1.5
    assert result["fraction"] == pytest.approx(rates["reached"] / rates["ideal"], rel=1e-2)
    assert rates["ideal"] == pytest.approx(num_cores() / sum(1 / rates[x] for x in ("env", "infer", "learn")), rel=1e-2)
    assert 0 < training["seconds_to_first_row"] < 120
    assert 0 < training["metrics"]["perf/learner_busy"] <= 1


def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("queue.py").write_text("raise SystemExit('not the standard library')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngramError, match="hidden_size"):
        training_speed(["--env", "boxworld", "--core", "lstm", "--core-args", "hidden_sizes=3", "--local"], 1.0, 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--core", "lstmm"], "lstm"),
        (["--env", "boxwrld"], "boxworld"),
        (["--secnds", "3"], "did you mean: --seconds"),
        (["--seconds", "none"], "--seconds: 'none' is not a duration; allowed: 90s"),
        (["--seconds"], "--seconds needs a value"),
        (["--json", "/no/such/folder/x.json"], "there is no directory '/no/such/folder'"),
        (["--core-args", "hidden=3"], "hidden"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rl-bench: ")
    assert said in lines[0]


# -- what a result carries -------------------------------------------------------------------------------------------


def test_memory_of_a_tree_of_processes_counts_shared_pages_once() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs Linux's /proc")
    program = (
        "import os, sys\n"
        "shared = bytearray(200_000_000)\n"
        "if os.fork() == 0:\n"
        "    own = bytearray(100_000_000)\n"
        "    print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    held = tree_memory(process.pid)
    process.communicate()
    assert 300e6 < held < 400e6
    assert tree_memory(process.pid) == 0


def test_provenance_names_the_commit_that_runs() -> None:
    facts = machine.provenance("scipy")
    assert facts["machine"]["cores"] >= 1
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["scipy"]
    root = Path(machine.__file__).parents[2]
    if (root / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout
        assert head.startswith(facts["commit"].removesuffix("-dirty"))
