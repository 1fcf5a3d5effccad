"""rl-bench: the parts are what they are called, the ideal is arithmetic, and the real command is what is timed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engram.agents.agent import AgentConfig
from engram.agents.cores.lstm import LSTMState
from engram.agents.cores.registry import make_core
from engram.base.processes import num_cores, tree_cpu_seconds, tree_memory
from engram.launch.bench.busy_cores import BusyCores
from engram.launch.bench.command import Plan, forecast, run
from engram.launch.bench.table import processor_time, rates_and_fractions
from engram.launch.bench.training_speed import training_speed
from engram.launch.metrics import provenance as machine
from engram.launch.metrics.speed import Cost, FusedLSTM, Parts, measure, open_parts, speed_of_light, with_fused_core
from engram.launch.run.command_line import UsageError
from engram.launch.run.config import RunConfig

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
    parts = Parts(env=1e-6, infer=4e-6, learn=20e-6)
    assert speed_of_light(parts, 2, learner_has_device=False) == pytest.approx(2 / 25e-6)
    assert speed_of_light(parts, 2, learner_has_device=True) == pytest.approx(1 / 20e-6)
    assert speed_of_light(parts, 1, learner_has_device=True) == pytest.approx(1 / 20e-6)
    slow_actors = Parts(env=1e-6, infer=4e-6, learn=1e-6)
    assert speed_of_light(slow_actors, 2, learner_has_device=True) == pytest.approx(2 / 5e-6)


def test_measure_takes_turns_and_tells_seconds_per_step() -> None:
    calls: list[str] = []

    def sleeper(name: str, seconds: float, steps: float) -> Callable[[], float]:
        def do() -> float:
            calls.append(name)
            time.sleep(seconds)
            return steps

        return do

    times = measure({"short": sleeper("short", 0.01, 10), "long": sleeper("long", 0.02, 1)}, seconds=0.2, slices=4)
    assert times["short"].wall == pytest.approx(0.001, rel=0.5)
    assert times["long"].wall == pytest.approx(0.02, rel=0.5)
    assert times["long"].cpu < 0.002, "sleeping costs no processor time"
    turns = [name for name, before in zip(calls, [None, *calls[:-1]], strict=True) if name != before]
    assert turns == ["short", "long"] * 5, "a call of each that does not count, then four turns"


def test_the_fused_kernel_is_the_yardstick_only_where_it_is_faster() -> None:
    seconds = {"env": 1e-6, "infer": 2e-6, "learn": 7e-6, "infer_fused": 4e-6, "learn_fused": 2e-6}
    found = rates_and_fractions(seconds, 100_000.0, 2, False)
    assert found["ideal"] == pytest.approx(200_000)
    assert found["fraction"] == pytest.approx(0.5)
    assert found["ideal_fused"] == pytest.approx(400_000), "1 + 2 + 2 microseconds: our own inference is the faster"
    assert found["fraction_fused"] == pytest.approx(0.25)
    assert found["learn"] == pytest.approx(1 / 7e-6, rel=1e-4)


def test_what_cores_do_together_is_an_ideal_of_its_own() -> None:
    alone = {"env": 1e-6, "infer": 2e-6, "learn": 7e-6}
    found = rates_and_fractions(alone | {f"{name}_busy": 2 * x for name, x in alone.items()}, 80_000.0, 2, False)
    assert found["ideal"] == pytest.approx(200_000)
    assert found["ideal_busy"] == pytest.approx(100_000)
    assert found["fraction_busy"] == pytest.approx(0.8)


def test_busy_cores_work_until_the_end_of_the_context() -> None:
    with BusyCores(tiny("feedforward"), CPU) as busy:
        started = tree_cpu_seconds(os.getpid())
        time.sleep(1.5)
        worked = tree_cpu_seconds(os.getpid()) - started
        assert [process.is_alive() for process in busy.processes] == [True] * (num_cores() - 1)
    assert worked > 0.2 * (num_cores() - 1)
    assert not any(process.is_alive() for process in busy.processes)


def test_share_of_the_parts_in_the_processor_time() -> None:
    def costs(cpu: float) -> dict[str, Cost]:
        return {name: Cost(wall=1.0, cpu=cpu) for name in ("env", "infer", "learn", "learn_fused")}

    found = processor_time([costs(1e-6), costs(3e-6)], [7e-6, 9e-6])
    assert found["infer"] == pytest.approx(2.0)
    assert found["rl-train"] == pytest.approx(8.0)
    assert found["share"] == pytest.approx(6 / 8)


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


def test_fused_lstm_is_the_lstm_core_without_resets() -> None:
    torch.manual_seed(0)
    core, fused = make_core("lstm", 5, hidden_size=7), FusedLSTM(5, 7)
    for mine, theirs in zip(core.parameters(), fused.parameters(), strict=True):
        theirs.data.copy_(mine.data)
    inputs, state = torch.randn(6, 3, 5), LSTMState(torch.randn(3, 7), torch.randn(3, 7))
    never = torch.zeros(6, 3, dtype=torch.bool)
    expected, last, _ = core.unroll(inputs, never, state)
    found, fused_last, _ = fused.unroll(inputs, never, state)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(tuple(fused_last), tuple(last))
    one, one_state = fused(inputs[0], state)
    torch.testing.assert_close(one, expected[0])
    torch.testing.assert_close(fused.unroll(inputs[1:], never[1:], one_state)[0], expected[1:])


def test_only_lstm_has_a_fused_yardstick() -> None:
    fused = with_fused_core(tiny("lstm"))
    assert fused is not None
    batch = fused.factory().make_batch()
    agent = fused.factory().make_agent(batch)
    assert isinstance(agent.core, FusedLSTM)
    assert agent.core.output_size == 8
    assert with_fused_core(tiny("gru")) is None


# -- the command -----------------------------------------------------------------------------------------------------


def test_bench_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    words = ["--env", "boxworld", "--core", "lstm", *TINY]
    own = ["--seconds", 1, "--warm-up", 0.2, "--rounds", 1, "--part-seconds", 0.1, "--json", file]
    assert bench(*words, *own) == 0
    shown = capsys.readouterr().out
    assert "reached by rl-train" in shown
    assert "fraction with the fused kernel" in shown
    assert "cpu, a large product, a large copy" in shown
    result = json.loads(file.read_text())
    assert result["command"] == ["rl-train", *map(str, words)]
    assert result["seed"] == 1
    assert result["configuration"]["envs_per_actor"] == 8
    mean, (training,) = result["mean"], result["training"]
    assert mean["reached"] == pytest.approx(training["steps"] / training["seconds"], rel=1e-3)
    assert training["seconds"] <= 1.5
    assert mean["fraction"] == pytest.approx(mean["reached"] / mean["ideal"], rel=1e-2)
    cores = num_cores()
    assert mean["ideal"] == pytest.approx(cores / (1 / mean["env"] + 1 / mean["infer"] + 1 / mean["learn"]), rel=1e-2)
    assert mean["ideal_fused"] >= mean["ideal"]
    assert mean["fraction_busy"] == pytest.approx(mean["reached"] / mean["ideal_busy"], rel=1e-2)
    assert len(result["parts"]) == 2, "before and after"
    assert result["cpu_us_per_step"]["share"] > 0
    assert 0 < result["seconds_to_first_update"] < 120
    assert 0 < training["metrics"]["perf/learner_busy"] <= 1
    assert all(50 < mb < 5000 for _, mb in training["memory_mb"])


def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("queue.py").write_text("raise SystemExit('not the standard library')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"its last words: rl-train: .*hidden_size"):
        training_speed(["--env", "boxworld", "--core", "lstm", "--core-args", "hidden_sizes=3", "--local"], 1.0, 0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--core", "lstmm"], "lstm"),
        (["--env", "boxwrld"], "boxworld"),
        (["--secnds", "3"], "did you mean: --seconds"),
        (["--seconds", "none"], "--seconds: 'none' is not a duration; allowed: 90s"),
        (["--rounds", "0"], "--rounds is 0; allowed: at least 1"),
        (["--seconds"], "--seconds needs a value"),
        (["--json", "/no/such/folder/x.json"], "no directory /no/such/folder"),
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


def test_processor_time_of_a_tree_of_processes() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs Linux's /proc")
    program = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.5: pass\n"
        "    print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    used = tree_cpu_seconds(process.pid)
    process.communicate()
    assert 0.45 < used < 1.0


def test_provenance_names_the_commit_that_runs() -> None:
    facts = machine.provenance("scipy")
    assert facts["machine"]["cores"] >= 1
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["scipy"]
    root = Path(machine.__file__).parents[2]
    if (root / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout
        assert head.startswith(facts["commit"].removesuffix("-dirty"))


def test_it_says_how_long_it_takes() -> None:
    plan = Plan(seconds=8, rounds=1, warm_up=2, part_seconds=0.8)
    assert forecast(plan, 8) == pytest.approx(12 + 12 + 2 + 8 + 2 * 8 * 0.8)
