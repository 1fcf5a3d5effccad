"""`rl-bench`: training speed as a fraction of this machine's ideal speed (docs/explanation/speed.md)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...agents.process import prepare_process
from ...base.errors import EngramError, user_errors
from ...base.processes import num_cores
from ...base.units import Seconds, duration
from ..metrics.provenance import provenance
from ..run.command_line import make_console, run_command, value_of, without
from ..run.config import RunConfig
from ..run.device import find_device, on_device
from ..run.run_flags import parse_run
from ..run.settings.plain import to_dict
from .parts import Parts, measure, open_parts, speed_of_light
from .training_speed import training_speed

OWN_FLAGS = ("--seconds", "--json")  # Flags of rl-bench; every other flag is rl-train's
SLICES = 6  # Turns of each part per measurement
MOST_WARM_UP, MOST_PART = 5.0, 3.0
"""Maximum seconds of warm-up, and of each part per measurement; less if --seconds is short."""
ROWS = {
    "env": "environments, alone on 1 core",
    "infer": "inference, alone on 1 core",
    "learn": "learner, alone on 1 core",
    "ideal": "ideal: {} times what one core does alone",
    "reached": "reached by rl-train",
}

_HELP = """usage: rl-bench [--seconds S] [--json FILE] [flags of rl-train]

Measures the parts of training alone on one core, then rl-train end to end, and reports the fraction of the ideal.

  --seconds S   measured training time, such as 30s or 2m; a plain number is in seconds (30s)
  --json FILE   write everything measured, with machine, versions, commit and seed

All other flags are those of rl-train (rl-train --help), such as --env, --core, --num-actors."""


def main(arguments: Sequence[str]) -> int:
    """Measure according to the arguments; returns the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    seconds = _seconds(value_of("--seconds", arguments) or "30")
    target = value_of("--json", arguments)
    train_arguments = without(arguments, OWN_FLAGS)
    config = parse_run(train_arguments, other_flags=OWN_FLAGS)
    if value_of("--env", train_arguments) is None and value_of("--config", train_arguments) is None:
        train_arguments = ["--env", config.env, *train_arguments]  # rl-train has no default
    if target and not Path(target).parent.is_dir():
        raise EngramError(f"--json {target}: there is no directory {Path(target).parent}")
    console = make_console()
    result = bench(config, train_arguments, seconds, console.print)
    show(result, console)
    if target:
        Path(target).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def bench(
    config: RunConfig, arguments: Sequence[str], seconds: float, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Rates of the parts and of training, ready for JSON.

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
    rates = {name: 1 / each for name, each in parts._asdict().items()} | {
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


def show(result: dict[str, Any], console: Console) -> None:
    """The result of `bench` as a table."""
    config, machine, training = result["configuration"], result["machine"], result["training"]
    table = Table(
        title=f"{config['env']} with {config['agent']['core']}, {config['num_actors']} actor(s) of "
        f"{config['envs_per_actor']} environments, updates of {config['unroll_length']} x {config['envs_per_update']}",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("steps/s", justify="right", no_wrap=True)
    for name, label in ROWS.items():
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


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-bench`."""
    run_command("rl-bench", main, arguments)
