"""Learning curves of all cores on recalling a cue over 60 steps, with a core without memory as control.

    python benchmarks/learn_recall.py FOLDER [CORE ...] [--jobs 2] [--minutes 10]

Trains every core on one T-maze with V-trace, in FOLDER/CORE, and collects curves, commands and the best checkpoints'
results on new levels in results/learning-recall.json and .png. Existing runs are collected unchanged.

The agent sees the cue for at least 30 frames, then waits 60 frames in a limbo where all observations are equal, and
reaches a goal in six moves. Guessing a goal earns 0 on average, so a policy gets only noise until it relates cue and
side; how soon depends on how strongly the cue affects a core's outputs at the choice before any learning. Hence gates
begin with a long memory, and the core receives the raw observation (no convolution, and no embedding where a core does
not learn through one in this time).
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """Settings that differ between cores."""

    options: str
    lr: float
    embedding: int
    """Width of a ReLU layer before the core, 0 for none: with one a cue is fainter, and gated cores learn anyway."""
    total_steps: int


TASK = "difficulty=0 half_width=4 limbo_time=60 teleport_delay=30 timeout_frames=250"
TRAINING = (
    "--conv-channels --unroll-length 200 --envs-per-actor 32 --envs-per-update 8 "
    "--discount 0.98 --entropy-cost 0.002 --lr-schedule constant --max-grad-norm 40 "
    "--log-every 10000 --checkpoint-every 20 --local"
)
CORES = {
    "lstm": Setting("hidden_size=64 memory_span=150", 1e-3, 128, 1_700_000),
    "gru": Setting("hidden_size=64 memory_span=150", 1e-3, 128, 1_200_000),
    "concrete": Setting("pool_size=385 num_pools=8 viewport_size=8 summarizer_size=128", 3e-3, 0, 3_600_000),
    "rmc": Setting("num_slots=2 num_heads=2 head_size=16 forget_bias=4 input_bias=-4", 5e-4, 0, 1_200_000),
    "fwm": Setting("hidden_size=64 memory_size=16 memory_span=150", 1e-3, 128, 2_000_000),
    "mnm-p": Setting("hidden_size=64 memory_size=16 num_heads=1 memory_span=150", 1e-3, 0, 1_500_000),
    "feedforward": Setting("hidden_size=64", 1e-3, 0, 4_000_000),
}
"""Cores in the order of their start; the control has the largest budget."""


def train(core: str, folder: Path, seed: int, minutes: float) -> Path:
    """Train one core; return the run's directory."""
    run, setting = folder / core, CORES[core]
    if not (run / "metrics.jsonl").exists():
        arguments = [
            "--env",
            "t-maze",
            "--env-args",
            *TASK.split(),
            "--core",
            core,
            "--core-args",
            *setting.options.split(),
        ]
        arguments += [
            "--lr",
            str(setting.lr),
            "--embedding-size",
            str(setting.embedding),
            "--total-steps",
            str(setting.total_steps),
            "--seed",
            str(seed),
        ]
        arguments += ["--time-limit", str(minutes), "--run-dir", str(run), *TRAINING.split()]
        with run.with_suffix(".log").open("w") as log:
            subprocess.run([Path(sys.executable).with_name("rl-train"), *arguments], check=True, stdout=log, stderr=log)
    print(f"{core} is done: {run}", flush=True)
    return run


def main() -> None:
    """Train and collect the cores named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cores", nargs="*", metavar="CORE", help=f"of {', '.join(CORES)}; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=1000, help="fresh levels per core for rl-eval")
    options = parser.parse_args()
    if unknown := set(options.cores) - set(CORES):
        parser.error(f"no setting for {', '.join(sorted(unknown))}; there is one for: {', '.join(CORES)}")

    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [
            pool.submit(train, core, options.folder, options.seed, options.minutes) for core in options.cores or CORES
        ]
        runs = [future.result() for future in futures]
    collect = [sys.executable, Path(__file__).with_name("collect_runs.py"), "learning-recall", *runs]
    subprocess.run([*collect, "--evaluate", str(options.episodes), "--checkpoint", "best"], check=True)


if __name__ == "__main__":
    main()
