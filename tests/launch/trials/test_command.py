"""`rl-train --seeds` and `--sweep`: several runs in one directory, stopped, resumed and compared."""

import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from engram.base.errors import EngramError
from engram.base.processes import StopFlag, num_cores
from engram.launch.compare.command import compare, load
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.rows import read_log
from engram.launch.runs.directory import RunDirectory
from engram.launch.runs.trained import run_config
from engram.launch.train import command
from engram.launch.trials import command as several
from engram.launch.trials.command import Plan, TrialRun, new_folder, summary, trial_runs
from engram.learners import checkpoints
from runs import FOREVER, TINY, family, gone, start, wait_for

SPACE = "learner.lr=loguniform(1e-4,1e-2)"
SMALL = [*(word for word in TINY if word not in ("--seed", "5")), "--local"]


def step_of(run: Path) -> int:
    newest = checkpoints.latest(run / "checkpoints")
    return checkpoints.step_of(newest) if newest else 0


@pytest.mark.nightly
def test_seeds_stop_together_and_are_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "three"
    words = [*SMALL, *FOREVER, "--checkpoint-every", "0.5", "--seeds", "1,2,3", "--jobs", "2", "--run-dir", folder]
    everyone: list[psutil.Process] = []
    with start(*words) as process:
        try:
            wait_for(lambda: all(step_of(folder / f"seed-{seed}") for seed in (1, 2)), seconds=300)
            everyone = family(process.pid)
            process.terminate()
            said, _ = process.communicate(timeout=180)
            assert gone(everyone)
        finally:
            for each in everyone:
                if each.is_running():
                    each.kill()
    assert process.returncode == 0, said
    assert "seed-1: stopped at" in said
    assert "stopped: 0 of 3 runs have all their steps" in said
    assert f"rl-train --resume {folder}" in said
    steps = {seed: step_of(folder / f"seed-{seed}") for seed in (1, 2, 3)}
    assert steps[3] == 0
    assert min(steps[1], steps[2]) > 0

    total = max(steps.values()) + 100
    done = subprocess.run(
        [Path(sys.executable).with_name("rl-train"), "--resume", folder, "--total-steps", f"{total}", "--jobs", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 runs left" in done.stdout
    assert "finished: 3 of 3 runs have all their steps" in done.stdout
    assert re.search(r"mean +\S+ \(sd \S+, n 3\) +[\d,]+ +finished", done.stdout)
    for seed in (1, 2, 3):
        run = RunDirectory(folder / f"seed-{seed}")
        assert step_of(run.path) >= total
        assert run_config(run).seed == seed
        logged = [row["step"] for row in read_log(run.metrics_file)]
        assert logged == sorted(set(logged))
    cell = compare(load([str(folder)]), [], "episode/return").cells["lstm"]["boxworld"]
    assert cell.seeds == [1, 2, 3]


def test_a_sweep_is_extended_and_names_the_run_that_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # lines with paths are not wrapped
    folder = tmp_path / "sweep"
    words = ["--total-steps", "600", "--sweep", SPACE, "--trials", "1", "--jobs", "2", "--seed", "7"]
    assert command.main([*SMALL, *words, "--run-dir", str(folder)], StopFlag(())) == 0
    said = capfd.readouterr().out
    assert "1 trials with values sampled with seed 7, seed 7; 1 of 1 runs left" in said
    assert "finished: 1 of 1 runs have all their steps" in said
    rates = [Plan(seeds=(7,), sweep=(SPACE,), trials=2).values(trial)["learner.lr"] for trial in (0, 1)]
    assert re.findall(r"^ +0 +(\S+) +-?[\d.]+ +\S+ +finished", said, re.MULTILINE) == [f"{rates[0]:.4g}"]

    words = ["--resume", str(folder), "--trials", "2", "--total-steps", "700"]
    with RunDirectory.open(folder / "trial-000"):  # another process trains there
        assert command.main(words, StopFlag(())) == 1
    said = capfd.readouterr().out
    assert re.search(r"trial-000: rl-train ended with exit code 2; see \S+trial-000.log \(.*in use by process", said)
    assert "failed: 1 of 2 runs have all their steps" in said
    assert step_of(folder / "trial-000") < 700 <= step_of(folder / "trial-001")
    for trial, rate in enumerate(rates):
        config = run_config(RunDirectory(folder / f"trial-00{trial}"))
        assert (config.learner.lr, config.seed) == (rate, 7)


def test_values_of_a_trial_do_not_depend_on_the_number_of_trials() -> None:
    space = (SPACE, "learner.bptt_length=choice(3,20,100)")
    few, many = (Plan(seeds=(4, 5), sweep=space, trials=n) for n in (2, 50))
    assert [few.values(k) for k in range(2)] == [many.values(k) for k in range(2)]
    rates = [many.values(k)["learner.lr"] for k in range(50)]
    assert len(set(rates)) == 50
    assert min(rates) < 2e-4
    assert max(rates) > 5e-3
    assert Plan(seeds=(5,), sweep=space, trials=1).values(0) != few.values(0)
    assert [place for *_, place in few.runs()] == [f"trial-00{k}/seed-{seed}" for k in (0, 1) for seed in (4, 5)]


def test_trials_are_sorted_by_their_final_return(tmp_path: Path) -> None:
    plan = Plan(seeds=(1, 2), sweep=(SPACE,), trials=3)
    folder = new_folder(parse_run([*SMALL, "--run-dir", str(tmp_path / "sweep")]), plan)
    for (trial, seed, place), late in zip(plan.runs(), (1.0, 2.0, 3.0, 5.0, None, None), strict=True):
        values = {100 * k: -9.0 * trial * seed for k in range(1, 9)} | {950: late, 1000: late}
        rows = [
            {"step": step, "time": 1.0, "wall_s": 1.0, "metrics": {} if value is None else {"episode/return": value}}
            for step, value in values.items()
        ]
        (folder / place / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows[-2 if trial == 2 else 0 :])
        )
    console = Console(width=120, file=io.StringIO())
    console.print(summary(plan, trial_runs(folder, plan, [], [])))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    found = [line.split() for line in lines if re.match(r" +\d ", line)]
    assert [line[0] for line in found] == ["1", "0", "2"]
    assert [line[2] for line in found] == ["4", "1.5", "-"]
    assert found[0][3:6] == ["(sd", "1.4,", "n"]


def test_the_final_return_of_a_population_is_the_mean_of_its_members(tmp_path: Path) -> None:
    plan = Plan(seeds=(1, 2))
    folder = new_folder(parse_run([*SMALL, "--population", "2", "--run-dir", str(tmp_path / "seeds")]), plan)
    runs = trial_runs(folder, plan, [], [])
    for member, value in enumerate((1.0, 4.0)):
        row = {"step": 9, "time": 1.0, "wall_s": 1.0, "metrics": {"episode/return": value}}
        file = folder / "seed-1" / "members" / str(member) / "metrics.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(row) + "\n")
    assert runs[0].final() == 2.5
    assert math.isnan(runs[1].final())


def test_runs_that_are_resumed_at_a_time_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that have not begun, or have been added."""
    folder = new_folder(parse_run([*SMALL, "--run-dir", str(tmp_path / "seeds")]), Plan(seeds=(1, 2)))
    trained: list[TrialRun] = []
    monkeypatch.setattr(several, "_train", lambda folder, plan, runs, jobs, stop: trained.extend(runs))
    for more in ([], ["--learner-threads", "3"]):
        several.train_several(["--resume", str(folder), "--jobs", "2", *more], StopFlag(()))
    threads = str(max(1, num_cores() // 2))
    assert [run.flags for run in trained] == [("--learner-threads", threads)] * 2 + [("--learner-threads", "3")] * 2


def test_a_run_of_a_seed_is_that_of_the_seed_alone() -> None:
    words = [*SMALL, "--lr", "1e-3"]
    assert Plan(seeds=(1, 2)).config(parse_run(words), 0, 2) == parse_run([*words, "--seed", "2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seed 1 --seeds 1,2", "--seed and --seeds are both given; allowed: one of them"),
        ("--seeds 1,1", "seeds has 1 twice"),
        ("--seeds 1,x", "'x' is not a whole number"),
        ("--seeds", "--seeds: expected at least one argument"),
        ("--seeds 1,-2", r"seeds is -2; allowed: 0\.\."),
        ("--seeds 1,2 --corr lstm", "unknown flag '--corr'; did you mean: --core"),
        ("--seeds 1,2 --env-args nonsense=1", "nonsense"),
        ("--seeds 1,2 --checkpoint-url file:///tmp/x", "--checkpoint-url is given for several runs"),
        ("--seeds 1,2 --trials 3", "--trials is given without --sweep"),
        ("--trials 3", "--trials is given without --sweep"),
        ("--jobs 2", "--jobs is given without --sweep or --seeds"),
        ("--seeds 1,2 --jobs 0", "--jobs is 0; allowed: at least 1"),
        (f"--sweep {SPACE}", "--sweep needs --trials N"),
        (
            "--sweep learner.lrr=uniform(0,1) --trials 2",
            "learner.lrr: not a numeric setting; did you mean",
        ),
        ("--sweep learner.clip_rho=uniform(0.5,1) --algorithm ppo --trials 2", "clip_rho"),
        (f"--sweep {SPACE} --trials 2 --population 2", "population is 2; allowed with --sweep: 0"),
        ("--resume RUN --seeds 1,2", "--seeds has no effect with --resume RUN, which does not contain several runs"),
        ("--resume SEEDS --seeds 1,2", "--seeds has no effect with --resume: SEEDS has its own"),
        ("--resume SEEDS --trials 3", "trials is 3; allowed for SEEDS: at least 1, for a --sweep"),
        ("--resume SEEDS --trust-checkpoint --lr 1", "SEEDS/seed-1 was trained with learner.lr"),
        ("--resume SEEDS --lr 1", "SEEDS/seed-1 was trained with learner.lr"),
        ("--seeds 1,2 --run-dir SEEDS", r"SEEDS contains runs already; to continue them: \S*rl-train --resume SEEDS"),
        ("--seeds 1,2 --run-dir RUN", "RUN is not empty"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    new_folder(parse_run([*SMALL, "--run-dir", "SEEDS"]), Plan(seeds=(1, 2)))
    RunDirectory.create("RUN", {"seed": 1}, name="x").close()
    with pytest.raises(EngramError, match=message) as problem:
        command.main([*([] if "--resume" in words else SMALL), *words.split()])
    assert "\n" not in str(problem.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RUN", "SEEDS"]
