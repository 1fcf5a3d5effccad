"""float32 against bfloat16 factors on this CPU, in turns: one multiplication, the parts of training, whole runs.

    python benchmarks/precision.py                      7 minutes; writes results/precision.json
    python benchmarks/precision.py --curves FOLDER      learning curves of five seeds each, into the same file

Nothing else should run on the machine. Ratios are bfloat16's rate over float32's in adjacent measurements.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.agents import kernels
from engram.agents.cores.fast import bf16, brgemm
from engram.agents.process import prepare_process
from engram.launch.bench.command import measure, open_parts, training_speed
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.provenance import provenance

RESULT = Path(__file__).parent / "results" / "precision.json"
SHAPES = ((1280, 650, 256), (5120, 256, 1024), (128, 906, 1024), (40, 256, 768), (16, 256, 1024))
"""Rows, terms and columns of BoxWorld's multiplications."""
CASES = {
    "boxworld rmc": ["--env", "boxworld", "--core", "rmc"],
    "boxworld lstm": ["--env", "boxworld", "--core", "lstm"],
    "pomdp-graph fwm": ["--env", "pomdp-graph", "--core", "fwm"],
    "maze mnm-p": ["--env", "maze", "--core", "mnm-p"],
    "t-maze concrete": ["--env", "t-maze", "--core", "concrete"],
}
PRECISIONS = ("float32", "bf16")
EASY = ("--preset", "easy")
CURVES = {
    "cartpole": ["--env", "CartPole-v1", "--core", "lstm", "--total-steps", "250000"],
    "boxworld": ["--env", "boxworld", "--core", "rmc", "--preset", "easy", "--total-steps", "400000"],
    "t-maze": ["--env", "t-maze", "--core", "concrete", *EASY, "--population", "0", "--total-steps", "2000000"],
}


def multiplications() -> dict[str, dict[str, float]]:
    """GFLOP/s of one thread, rounding and packing of both factors included."""
    result: dict[str, dict[str, float]] = {}
    for rows, terms, columns in SHAPES:
        x, weight = torch.randn(rows, terms), torch.randn(columns, terms)
        ways: dict[str, Callable[..., torch.Tensor]] = {"float32": kernels.product, "bf16": bf16.product}
        times = {name: seconds(partial(way, x, weight)) for name, way in ways.items()}
        rates = {name: round(2e-9 * rows * terms * columns / each, 1) for name, each in times.items()}
        result[f"{rows} x {terms} x {columns}"] = rates
    return result


def seconds(work: Callable[[], Any], limit: float = 0.5) -> float:
    """Seconds of the fastest call within the time limit."""
    times, end = list[float](), time.perf_counter() + limit
    while time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def parts(arguments: list[str]) -> dict[str, float]:
    """Measure ratios of acting and learning, each alone on one core."""
    times: dict[str, list[float]] = {}
    for precision in PRECISIONS:
        with open_parts(parse_run([*arguments, "--precision", precision]), torch.device("cpu")) as work:
            for name, each in measure(work, 2.0, 2).items():
                times.setdefault(name, []).append(each)
    return {name: round(plain / rounded, 3) for name, (plain, rounded) in times.items() if name != "env"}


def training(arguments: list[str], turns: int, length: float) -> dict[str, Any]:
    """Measure steps per second of rl-train, in turns."""
    rates: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for turn in range(turns):
        for precision in PRECISIONS[:: 1 if turn % 2 == 0 else -1]:
            speed = training_speed([*arguments, "--precision", precision], length, length / 4)
            rates[precision].append(round(speed.steps_per_second, 1))
    ratios = [rounded / plain for plain, rounded in zip(*rates.values(), strict=True)]
    return {"steps_per_second": rates, "ratio": round(statistics.median(ratios), 3)}


def curves(folder: Path, seeds: str) -> dict[str, Any]:
    """Train every case with both precisions (existing folders are skipped), and compare the last fifth of training."""
    results: dict[str, Any] = {}
    for name, arguments in CURVES.items():
        ends: list[list[float]] = []
        for precision in PRECISIONS:
            place = folder / f"{name}-{precision}"
            if not place.exists():
                run = ["--seeds", seeds, "--jobs", "1", "--local", "--precision", precision, "--run-dir", str(place)]
                subprocess.run(["rl-train", *arguments, *run], check=True)
            ends.append([last_fifth(file) for file in sorted(place.glob("seed-*/metrics.jsonl"))])
        sample = np.random.default_rng(0)
        means = [sample.choice(each, (10_000, len(each))).mean(1) for each in ends]
        interval = [round(float(each), 3) for each in np.quantile(means[1] - means[0], (0.025, 0.975))]
        results[name] = {"flags": arguments, **dict(zip(PRECISIONS, ends, strict=True)), "difference_95": interval}
        print(name, results[name], flush=True)
    return results


def last_fifth(file: Path) -> float:
    """Mean score of the episodes in the last fifth of a run: the solved rate, else the return."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    measure = "episode/solved" if any("episode/solved" in row["metrics"] for row in rows) else "episode/return"
    scores = [
        row["metrics"][measure] for row in rows if row["step"] > 0.8 * rows[-1]["step"] and measure in row["metrics"]
    ]
    return round(statistics.mean(scores), 4)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    if options.curves:
        result = {"curves": curves(options.curves, options.seeds)}
        RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | result, indent=1) + "\n")
        return
    if not bf16.routine():
        sys.exit(f"no bfloat16 multiplications: {brgemm.missing()}")
    prepare_process(1)
    before = json.loads(RESULT.read_text()).get("cases", {}) if RESULT.exists() else {}
    results: dict[str, Any] = {"gflops": multiplications(), "cases": before}
    for name in options.only:
        arguments = CASES[name]
        results["cases"][name] = {"parts": parts(arguments)} | training(arguments, options.turns, options.seconds)
        print(name, json.dumps(results["cases"][name]), flush=True)
        RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | provenance() | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
