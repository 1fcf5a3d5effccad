"""`rl-bench`: training speed as a fraction of this machine's ideal speed (docs/explanation/speed.md).

The parts of training are timed separately, on one CPU core, per environment step, as in the rest of engram: steps with
an ignored action, between two episodes, take time but do not count. Their actions, observations and batches are those
of real unrolls.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Column, Table

from ...actors.actor import Actor
from ...actors.unroll import Unroll
from ...agents.process import prepare_process
from ...agents.values import map_leaves
from ...base.errors import check_new_file, refuse, user_errors
from ...base.processes import num_cores
from ...base.units import Seconds, duration
from ...envs.arrays import random_valid
from ...learners.batches import Batcher
from ...learners.learner import Learner
from ..config.command_line import RL_TRAIN, make_console, value_of, without
from ..config.plain import to_dict
from ..config.run_config import RunConfig, find_device, on_device
from ..config.run_flags import parse_run
from ..metrics.provenance import provenance
from ..metrics.rows import read_log

EARLIER_UNROLLS, UNROLLS = 4, 6  # After the first, environments are out of phase; the parts are measured on the others
Work = Callable[[], float]  # Does some work of a part; returns its environment steps
OWN_FLAGS = ("--seconds", "--json")  # Flags of rl-bench; every other flag is rl-train's
OWN_SETTINGS = ("--run-dir", "--total-steps", "--time-limit", "--log-seconds")  # Flags that the measurement sets
SLICES, ROWS = 6, 9  # Slices of each part per measurement; rows of metrics in the measured time
MOST_WARM_UP, MOST_PART = 5.0, 3.0  # Maximum seconds of warm-up and of each part; shorter if --seconds is short
_HELP = """usage: rl-bench [--seconds S] [--json FILE] [flags of rl-train]

Measures the parts of training alone on one core, then rl-train end to end, and reports the fraction of the ideal.

  --seconds S   measured training time, such as 30s or 2m; a plain number is in seconds (30s)
  --json FILE   write everything measured, with machine, versions, commit and seed

All other flags are those of rl-train (rl-train --help), such as --env, --core, --num-actors."""


def speed_of_light(env: float, infer: float, learn: float, cores: int, learner_has_device: bool) -> float:
    """Maximum number of environment steps per second that `cores` cores can learn from, by the seconds of each part.

    cores / (t_env + t_infer + t_learn)                   the learner shares the cores
    min(cores / (t_env + t_infer), 1 / t_learn)           the learner has a separate device
    """
    return min(cores / (env + infer), 1 / learn) if learner_has_device else cores / (env + infer + learn)


@contextmanager
def open_parts(config: RunConfig, device: torch.device) -> Generator[dict[str, Work]]:
    """Yield the work of each part, with the networks and batch sizes of `config`; close the environments."""
    torch.manual_seed(config.seed)
    with closing(config.factory().make_actor(0)) as actor:
        for _ in range(EARLIER_UNROLLS):
            actor.unroll()
        unrolls = [actor.unroll() for _ in range(UNROLLS)]
        over = torch.cat([(unroll.env.terminated | unroll.env.truncated)[:-1] for unroll in unrolls])
        steps = (1.0 - float(over.float().mean())) * actor.unroll_length * actor.batch.num_envs
        learner = Learner(config.factory().make_agent(actor.batch).to(device), config.learner, config.total_steps)
        batcher = Batcher(config.columns)
        for unroll in unrolls:
            batcher.add(unroll)
        batches: list[Any] = [batcher.next(actor.unroll), *iter(batcher.take, None)]
        yield {
            "env": _step_environments(actor, unrolls, steps).__next__,
            "infer": _infer(actor, unrolls, steps).__next__,
            "learn": _learn(learner, batches, device).__next__,
        }


def measure(work: dict[str, Work], seconds: float, slices: int) -> dict[str, float]:
    """Measure the seconds per environment step of each kind of work, in `slices` turns of `seconds / slices` each. In
    turns, other load slows all kinds equally. The first call of each is not counted."""
    for do in work.values():
        do()
    wall, steps = dict.fromkeys(work, 0.0), dict.fromkeys(work, 0.0)
    for _ in range(slices):
        for name, do in work.items():
            started = time.perf_counter()
            while time.perf_counter() - started < seconds / slices:
                steps[name] += do()
            wall[name] += time.perf_counter() - started
    return {name: wall[name] / steps[name] for name in work}


def _step_environments(actor: Actor, unrolls: Sequence[Unroll], steps: float) -> Iterator[float]:
    batch: Any = actor.batch
    spec: Any = actor.agent.action_spec
    rng, n = np.random.default_rng(0), batch.num_envs
    observation, reward = batch.new_observation(), np.zeros(n, np.float32)
    terminated, truncated = np.zeros((2, n), np.bool_)
    batch.reset_into(observation, 0)
    for unroll in itertools.cycle(unrolls):
        for actions in unroll.agent.action.cpu().numpy():
            if batch.action_mask is not None:
                actions = random_valid(batch.action_mask | (terminated | truncated)[:, None], spec.choices, rng)
            batch.step_into(actions, observation, reward, terminated, truncated)
        yield steps


def _infer(actor: Actor, unrolls: Sequence[Unroll], steps: float) -> Iterator[float]:
    length = actor.unroll_length
    rows = [[map_leaves(lambda x, t=t: x[t], unroll.env) for t in range(length)] for unroll in unrolls]
    for unroll, outputs in itertools.cycle(zip(unrolls, rows, strict=True)):
        state = unroll.initial_state
        actor.agent.begin_unroll(length)
        for output in outputs:
            _, state = actor.agent.step(output, state, actor.generator)
        actor.agent.end_unroll()
        yield steps


def _learn(learner: Learner, batches: Sequence[Unroll], device: torch.device) -> Iterator[float]:
    for batch in itertools.cycle(batches):
        before = learner.steps
        learner.step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield float(learner.steps - before)


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    with user_errors("--seconds"):
        seconds = duration(text := value_of("--seconds", arguments) or "30", Seconds)
    refuse(not seconds >= 1, f"--seconds is {text}; allowed: at least 1s")
    target = value_of("--json", arguments)
    check_new_file("--json", target or "")
    train_arguments = without(arguments, OWN_FLAGS)
    config = parse_run(train_arguments, other_flags=OWN_FLAGS)
    if value_of("--env", train_arguments) is None and value_of("--config", train_arguments) is None:
        train_arguments = ["--env", config.env, *train_arguments]  # rl-train has no default
    result = bench(config, train_arguments, seconds)
    show(result)
    if target:
        Path(target).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def bench(config: RunConfig, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Measure the rates of the parts and of training; `arguments` is the configuration as arguments of `rl-train`."""
    prepare_process(1)
    device = find_device(config.device)
    config = replace(config, learner=on_device(config.learner, device))
    part_seconds = min(MOST_PART, seconds / 10)
    with user_errors(), open_parts(config, device) as work:
        print(f"measuring {', '.join(work)}")
        before = measure(work, part_seconds, SLICES)
        print(f"rl-train for {seconds:g} s")
        speed = training_speed(arguments, seconds, min(MOST_WARM_UP, seconds / 4))
        after = measure(work, part_seconds, SLICES)
    costs = {name: (before[name] + after[name]) / 2 for name in work}
    ideal = speed_of_light(**costs, cores=num_cores(), learner_has_device=device.type != "cpu")
    rates = {name: 1 / cost for name, cost in costs.items()} | {"ideal": ideal, "reached": speed.steps_per_second}
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
    """Run `rl-train` for `seconds` after `warm_up` seconds. Raises EngramError if it fails, or if it is too slow."""
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "run", time.time()
        limits = ["--total-steps", str(10**15), "--time-limit", f"{warm_up + seconds}s"]
        often = ["--log-seconds", str(seconds / ROWS), "--run-dir", str(path)]
        flags = [*without(arguments, OWN_SETTINGS), *limits, *often]
        program = [sys.executable, "-P", "-c", RL_TRAIN, *flags]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        refuse(done.returncode, done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
        log = read_log(path / "metrics.jsonl")
    rows = [row for row in log if row["time"] >= log[0]["time"] + warm_up]
    refuse(len(rows) < 2, f"rl-train logged {len(rows)} rows in --seconds {seconds:g}; needed: 2; raise --seconds")
    first, last = rows[0], rows[-1]
    steps, elapsed = int(last["step"] - first["step"]), last["time"] - first["time"]
    means = {name: fmean(row.get(name, 0.0) for row in rows[1:]) for name in last if name.startswith("perf/")}
    return TrainingSpeed(steps / elapsed, steps, elapsed, means, log[0]["time"] - started)


def show(result: dict[str, Any]) -> None:
    config, machine = result["configuration"], result["machine"]
    title = (
        f"{config['env']} with {config['agent']['core']}, {config['num_actors']} actor(s) of "
        f"{config['envs_per_actor']} environments, updates of {config['unroll_length']} x {config['envs_per_update']}"
    )
    table = Table("", Column("steps/s", justify="right", no_wrap=True), title=title, title_justify="left")
    labels = [f"{part}, alone on 1 core" for part in ("environments", "inference", "learner")]
    labels += [f"ideal: {machine['cores']} times what one core does alone", "reached by rl-train"]
    for label, rate in zip(labels, result["steps_per_second"].values(), strict=True):
        table.add_row(label, f"{rate:,.0f}")
    table.add_row("fraction of the ideal", f"{result['fraction']:.2f}", style="bold")
    make_console().print(table, f"{machine['processor']}, {machine['cores']} core(s)")
