"""`rl-bench`: training speed as a fraction of this machine's ideal speed (docs/explanation/speed.md)."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from ...agents.process import prepare_process
from ...base.errors import EngramError, refuse, user_errors
from ...base.messages import check_new_file
from ...base.processes import num_cores
from ...base.units import Seconds, duration
from ..config.command_line import make_console, value_of, without
from ..config.device import find_device, on_device
from ..config.run_config import RunConfig
from ..config.run_flags import parse_run
from ..config.settings.plain import to_dict
from ..metrics.provenance import provenance
from ..metrics.rows import read_log
from .parts import Parts, measure, open_parts, speed_of_light

OWN_FLAGS = ("--seconds", "--json")  # Flags of rl-bench; every other flag is rl-train's
OWN_SETTINGS = ("--run-dir", "--total-steps", "--time-limit", "--log-seconds")
"""Flags of rl-train that the measurement sets itself."""
SLICES, ROWS = 6, 9  # Slices of each part per measurement; rows of metrics in the measured time
MOST_WARM_UP, MOST_PART = 5.0, 3.0
"""Maximum seconds of warm-up and of each part per measurement; shorter if --seconds is short."""
LABELS = {
    "env": "environments, alone on 1 core",
    "infer": "inference, alone on 1 core",
    "learn": "learner, alone on 1 core",
    "ideal": "ideal: {} times what one core does alone",
    "reached": "reached by rl-train",
}

PROGRAM = "from engram.launch.train.command import run; run()"

_HELP = """usage: rl-bench [--seconds S] [--json FILE] [flags of rl-train]

Measures the parts of training alone on one core, then rl-train end to end, and reports the fraction of the ideal.

  --seconds S   measured training time, such as 30s or 2m; a plain number is in seconds (30s)
  --json FILE   write everything measured, with machine, versions, commit and seed

All other flags are those of rl-train (rl-train --help), such as --env, --core, --num-actors."""


def main(arguments: Sequence[str]) -> int:
    """Measure according to the arguments; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    seconds = _seconds(value_of("--seconds", arguments) or "30")
    target = value_of("--json", arguments)
    train_arguments = without(arguments, OWN_FLAGS)
    config = parse_run(train_arguments, other_flags=OWN_FLAGS)
    if value_of("--env", train_arguments) is None and value_of("--config", train_arguments) is None:
        train_arguments = ["--env", config.env, *train_arguments]  # rl-train has no default
    check_new_file("--json", target or "")
    console = make_console()
    result = bench(config, train_arguments, seconds, console.print)
    show(result, console)
    if target:
        Path(target).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def bench(
    config: RunConfig, arguments: Sequence[str], seconds: float, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure the rates of the parts and of training; return them ready for JSON.

    Args:
        arguments: the configuration as arguments of `rl-train`.
        seconds: measured training time; the parts are measured before and after it.
    """
    prepare_process(1)
    device = find_device(config.device)
    config = replace(config, learner=on_device(config.learner, device))
    part_seconds = min(MOST_PART, seconds / 10)
    with user_errors():
        with open_parts(config, device) as work:
            report(f"measuring {', '.join(work)}")
            before = measure(work, part_seconds, SLICES)
            report(f"rl-train for {seconds:g} s")
            speed = training_speed(arguments, seconds, min(MOST_WARM_UP, seconds / 4))
            after = measure(work, part_seconds, SLICES)
    parts = Parts(*((before[name] + after[name]) / 2 for name in Parts._fields))
    ideal = speed_of_light(parts, num_cores(), device.type != "cpu")
    rates = {name: 1 / cost for name, cost in parts._asdict().items()} | {
        "ideal": ideal,
        "reached": speed.steps_per_second,
    }
    return provenance() | {
        "command": ["rl-train", *arguments],
        "seed": config.seed,
        "configuration": to_dict(replace(config, run_dir=None, envs_per_update=config.columns)),
        "steps_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "fraction": round(speed.steps_per_second / ideal, 4),
        "training": speed._asdict(),
    }


class TrainingSpeed(NamedTuple):
    """Speed of one run of `rl-train` after its warm-up."""

    steps_per_second: float
    steps: int
    seconds: float  # Seconds between the first and the last measured row of metrics
    metrics: dict[str, float]  # Means of the `perf/` metrics over those rows
    seconds_to_first_row: float  # Seconds from the start of the command to its first row of metrics


def training_speed(arguments: Sequence[str], seconds: float, warm_up: float) -> TrainingSpeed:
    """Run `rl-train` with these arguments for `seconds` after `warm_up` seconds, and read its rows of metrics. Raises
    EngramError if it fails, or makes fewer than two updates in this time."""
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "run", time.time()
        limits = ["--total-steps", str(10**15), "--time-limit", f"{warm_up + seconds}s"]
        often = ["--log-seconds", str(seconds / ROWS), "--run-dir", str(path)]
        command = [sys.executable, "-P", "-c", PROGRAM, *without(arguments, OWN_SETTINGS), *limits, *often]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise EngramError(lines[-1])
        log = read_log(path / "metrics.jsonl")
    rows = [row for row in log if row["time"] >= log[0]["time"] + warm_up]
    refuse(len(rows) < 2, f"rl-train logged {len(rows)} rows in --seconds {seconds:g}; needed: 2; raise --seconds")
    first, last = rows[0], rows[-1]
    steps, elapsed = last["step"] - first["step"], last["time"] - first["time"]
    names = [name for name in last if name.startswith("perf/")]
    means = {name: fmean(row.get(name, 0.0) for row in rows[1:]) for name in names}
    return TrainingSpeed(steps / elapsed, steps, elapsed, means, log[0]["time"] - started)


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result of `bench` as a table."""
    config, machine, training = result["configuration"], result["machine"], result["training"]
    table = Table(
        "",
        Column("steps/s", justify="right", no_wrap=True),
        title=f"{config['env']} with {config['agent']['core']}, {config['num_actors']} actor(s) of "
        f"{config['envs_per_actor']} environments, updates of {config['unroll_length']} x {config['envs_per_update']}",
        title_justify="left",
    )
    for name, label in LABELS.items():
        table.add_row(label.format(machine["cores"]), f"{result['steps_per_second'][name]:,.0f}")
    table.add_row("fraction of the ideal", f"{result['fraction']:.2f}", style="bold")
    console.print(table)
    console.print(
        f"{machine['processor']}, {machine['cores']} core(s); first row of metrics "
        f"{training['seconds_to_first_row']:.1f} s after the command",
        highlight=False,
    )


def _seconds(text: str) -> float:
    with user_errors("--seconds"):
        value = duration(text, Seconds)
    if not value >= 1:
        raise EngramError(f"--seconds is {text}; allowed: at least 1s")
    return value
