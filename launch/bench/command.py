"""`rl-bench`: how close training comes to the speed of light of this machine (docs/explanation/speed.md)."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...agents.process import prepare_process
from ...base.messages import duration_in_words
from ...base.processes import num_cores
from ...base.units import Seconds, count, duration
from ..metrics.provenance import provenance
from ..metrics.roofline import roofline
from ..metrics.speed import Cost, Parts, Work, measure, open_parts, with_fused_core
from ..run.command_line import UsageError, make_console, run_command, value_of, without
from ..run.config import RunConfig, to_dict
from ..run.device import find_device
from ..run.run_flags import parse_run
from .busy_cores import BusyCores
from .table import processor_time, rates_and_fractions, show
from .training_speed import TrainingSpeed, time_to_first_update, training_speed

OWN_FLAGS = {"--seconds": "30", "--rounds": "", "--warm-up": "", "--part-seconds": "", "--json": ""}
"""Flags of rl-bench and what they are if not given; every other flag is rl-train's."""
SLICES = 6
"""Turns that each part takes, per measurement."""
SHORT = 20.0
"""Fewer seconds of training are measured in one round."""
START_SECONDS = 12.0
"""From the command `rl-train` to its first row of metrics, about."""
MEMORY_SAMPLES = 60
"""Points of the memory's course that are kept."""

_HELP = """usage: rl-bench [--seconds S] [--rounds N] [--warm-up S] [--part-seconds S] [--json FILE] [flags of rl-train]
       rl-bench cores ...

Measures the parts of training alone on one core, then rl-train end to end, and says how much of the ideal is reached.

  --seconds S   training that counts, per round, such as 30s or 2m; a plain number counts seconds (30s)
  --rounds N    rounds of training, each between two measurements of the parts (2, or 1 if --seconds is less than 20)
  --warm-up S   training before that (5s, or a quarter of --seconds if that is less)
  --part-seconds S
                time of each part, per measurement (3s, or a tenth of --seconds if that is less)
  --json FILE   write everything measured, with machine, versions, commit and seed

All other flags are those of rl-train (rl-train --help), such as --env, --core, --num-actors."""


class Plan(NamedTuple):
    """How long to measure."""

    seconds: float
    """Of training that count, per round."""
    rounds: int
    """Of training; the parts are measured before, between and after."""
    warm_up: float
    """Seconds of training before those that count."""
    part_seconds: float
    """For each part, per measurement."""


def main(arguments: Sequence[str]) -> int:
    """Measure as the words say; returns the exit code."""
    if arguments and arguments[0] == "cores":
        return _cores(arguments[1:])
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    own = {flag: value_of(flag, arguments) or default for flag, default in OWN_FLAGS.items()}
    words = without(arguments, tuple(OWN_FLAGS))
    config = parse_run(words, other_flags=tuple(OWN_FLAGS))
    if value_of("--env", words) is None and value_of("--config", words) is None:
        words = ["--env", config.env, *words]  # rl-train has no default
    seconds = _seconds("--seconds", own["--seconds"], 1)
    try:
        rounds = count(own["--rounds"] or ("2" if seconds >= SHORT else "1"))
    except ValueError as problem:
        raise UsageError(f"--rounds: {problem}") from problem
    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}; allowed: at least 1")
    plan = Plan(
        seconds=seconds,
        rounds=rounds,
        warm_up=_seconds("--warm-up", own["--warm-up"] or f"{min(5, seconds / 4)}", 0),
        part_seconds=_seconds("--part-seconds", own["--part-seconds"] or f"{min(3, seconds / 10)}", 0.1),
    )
    file = Path(own["--json"]) if own["--json"] else None
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"--json {file}: there is no directory {file.parent}")
    console = make_console()
    result = bench(config, words, plan, console.print)
    show(result, console)
    if file is not None:
        file.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def bench(config: RunConfig, words: Sequence[str], plan: Plan, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Everything that `rl-bench` finds out, ready for JSON.

    Args:
        config: the run's configuration.
        words: the same as words for `rl-train`.
        plan: how long to measure.
        report: told what is being measured.
    """
    prepare_process(1)
    device = find_device(config.device)
    with ExitStack() as files:
        try:
            others = dict[str, Work]()
            if (fused := with_fused_core(config)) is not None:
                with open_parts(fused, device) as parts:  # what remains needs no environments
                    others = {f"{name}_fused": do for name, do in parts.items() if name != "env"}
            work = files.enter_context(open_parts(config, device)) | others
        except (ValueError, TypeError) as problem:
            raise UsageError(str(problem)) from problem
        return _bench(config, words, plan, report, device, work)


def _bench(
    config: RunConfig,
    words: Sequence[str],
    plan: Plan,
    report: Callable[[str], None],
    device: torch.device,
    work: dict[str, Work],
) -> dict[str, Any]:
    """As `bench`, with the parts ready to be measured."""
    report(f"this takes about {duration_in_words(forecast(plan, len(work) + len(Parts._fields)))}")
    report("rl-train to its first update")
    startup = time_to_first_update(words)
    report(f"parts: {', '.join(work)}; first on one core, then on all of them")

    def measured() -> dict[str, Cost]:
        alone = measure(work, plan.part_seconds, SLICES)
        with BusyCores(config, device):
            own = measure({name: work[name] for name in Parts._fields}, plan.part_seconds, SLICES)
        return alone | {f"{name}_busy": cost for name, cost in own.items()}

    costs, speeds = [measured()], list[TrainingSpeed]()
    for i in range(plan.rounds):
        report(f"rl-train for {plan.seconds:g} s, then the parts again (round {i + 1} of {plan.rounds})")
        speeds.append(training_speed(words, plan.seconds, plan.warm_up))
        costs.append(measured())
    mean = {name: sum(cost[name].wall for cost in costs) / len(costs) for name in costs[0]}
    best = {name: min(cost[name].wall for cost in costs) for name in costs[0]}
    reached = sum(speed.steps for speed in speeds) / sum(speed.seconds for speed in speeds)
    most = max(speed.steps_per_second for speed in speeds)
    where = (num_cores(), device.type != "cpu")
    report("what the device can do at most")
    return provenance() | {
        "command": ["rl-train", *words],
        "seed": config.seed,
        "configuration": to_dict(replace(config, run_dir=None, envs_per_update=config.columns)),
        "seconds_to_first_update": round(startup, 2),
        "mean": rates_and_fractions(mean, reached, *where),
        "best": rates_and_fractions(best, most, *where),
        "roofline": roofline(config, device, best, plan.part_seconds),
        "cpu_us_per_step": processor_time(costs, [speed.cpu_seconds_per_step for speed in speeds]),
        "parts": [{name: round(1 / cost.wall, 1) for name, cost in each.items()} for each in costs],
        "training": [speed._replace(memory_mb=_thinned(speed.memory_mb))._asdict() for speed in speeds],
    }


def forecast(plan: Plan, parts: int) -> float:
    """Seconds that a measurement takes, with `parts` kinds of work measured before and after each round."""
    training = plan.rounds * (START_SECONDS + plan.warm_up + plan.seconds)
    return START_SECONDS + training + (plan.rounds + 1) * parts * plan.part_seconds


def _thinned(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """About MEMORY_SAMPLES of them."""
    return samples[:: max(1, len(samples) // MEMORY_SAMPLES)]


def _cores(arguments: Sequence[str]) -> int:
    """`rl-bench cores`: speed and memory of every core alone."""
    if importlib.util.find_spec(f"{__package__}.cores") is None:
        raise UsageError("'cores' is not part of this installation")
    return importlib.import_module(f"{__package__}.cores").main(arguments)


def _seconds(flag: str, text: str, low: float) -> float:
    try:
        value = duration(text, Seconds)
    except ValueError as problem:
        raise UsageError(f"{flag}: {problem}") from problem
    if not value >= low:
        raise UsageError(f"{flag} is {text}; allowed: at least {low}s")
    return value


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-bench`."""
    run_command("rl-bench", main, arguments)
