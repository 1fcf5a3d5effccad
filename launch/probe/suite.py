"""`rl-probe suite`: every core on every task with one budget, as a leaderboard.

A cell is one core on one task. Half of its budget goes to a search: each learning rate gets an equal part of it. The
run with the best accuracy on new data of training's distribution continues with the other half and is tested. Cells
are runs of `rl-probe` in separate folders, so a stopped suite can be resumed.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...agents.cores.registry import core_class, core_names
from ...base.errors import EngramError, user_errors
from ...base.messages import SEEDS, above, check_span
from ...base.settings import Settings, setting
from ...base.units import Minutes
from ...envs.tasks.registry import find_task, make_task
from ..run.command_line import make_console, parse
from .config import recipe
from .leaderboard import read_results, write_leaderboard
from .run import RESULT, STOPPED, make_tests

CHEAP = (
    "copy",
    "reverse",
    "recall",
    "capacity",
    "interference",
    "overwriting",
    "noise",
    "temporal-order",
    "dictionary-4-1",
    "nth-farthest",
)
"""Tasks that distinguish cores within minutes."""

SMALL: dict[str, dict[str, Any]] = {
    "concrete": {"pool_size": 32, "num_pools": 8, "viewport_size": 8, "summarizer_size": 64},
    "parallel": {"pool_size": 32, "num_pools": 8, "viewport_size": 8, "summarizer_size": 64},
    "conv-lstm": {"height": 1, "width": 1, "hidden_channels": 64, "kernel_size": 1},
    "feedforward": {},
    "ffm": {"hidden_size": 64},
    "fwm": {"hidden_size": 64, "memory_size": 16},
    "gru": {"hidden_size": 64},
    "gtrxl": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "head_size": 16, "mlp_size": 64},
    "lru": {"hidden_size": 64, "state_size": 64},
    "lstm": {"hidden_size": 64},
    "min-gru": {"hidden_size": 64},
    "mnm-g": {"hidden_size": 32, "memory_size": 24},
    "mnm-p": {"hidden_size": 32, "memory_size": 24},
    "rmc": {"num_slots": 4, "num_heads": 4, "head_size": 16, "gate": "memory"},
}
"""Options of small cores, for minutes on one CPU core; other cores have their defaults."""


@dataclass(frozen=True, kw_only=True)
class SuiteConfig(Settings):
    """The cores, the tasks and the budget."""

    cores: tuple[str, ...] = ()
    """Cores; none for all registered ones."""
    tasks: tuple[str, ...] = CHEAP
    """Tasks."""
    minutes: Minutes = setting(5.0, above(0))
    """Training time for each core on each task, including the search; a plain number is in minutes."""
    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Learning rates to search; with one there is no search."""
    task_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of tasks, TASK.KEY=VALUE."""
    small: bool = True
    """Use small sizes of the cores instead of their defaults."""
    jobs: int = setting(1, (1, None))
    """Number of concurrent runs."""
    seed: int = setting(1, SEEDS)
    """Seed of weights and sequences."""
    test_sequences: int = setting(2048, (1, None))
    """Sequences of each test."""
    out: str = "runs/probe-suite"
    """Folder of runs and leaderboard; an existing suite is resumed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for lr in self.lrs or (0.0,):
            check_span("lrs", lr, above(0))


class Cell(NamedTuple):
    """One core on one task."""

    task: str
    core: str


def main(arguments: Sequence[str]) -> int:
    """Run the suite of the arguments; returns the exit code."""
    config = parse(SuiteConfig, arguments, "rl-probe suite", __doc__ or "")
    cells = cells_of(config)
    out, console = Path(config.out), make_console()
    out.mkdir(parents=True, exist_ok=True)
    _keep_settings(config, out)
    failed: list[str] = []
    with ThreadPoolExecutor(config.jobs) as workers:
        waiting = {workers.submit(run_cell, config, cell, out): cell for cell in cells}
        try:
            for number, done in enumerate(as_completed(waiting), 1):
                cell = waiting[done]
                problem = done.result()
                if problem:
                    failed.append(f"{cell.task} with {cell.core}: {problem}")
                else:
                    result = json.loads((out / cell.task / cell.core / RESULT).read_text())
                    text = f"{result['accuracy']:.1%} right, chance {result['chance']:.1%}"
                    console.print(f"{number} of {len(cells)}: {cell.task} with {cell.core}: {text}", highlight=False)
                write_leaderboard(out, config.minutes)
        except KeyboardInterrupt:  # the running probes receive it as well and stop; no other begins
            workers.shutdown(cancel_futures=True)
            raise
    for line in failed:
        print(f"rl-probe: {line}", file=sys.stderr)
    if read_results(out):
        console.print((out / "leaderboard.txt").read_text(), highlight=False, soft_wrap=True)
    return 1 if failed else 0


def cells_of(config: SuiteConfig) -> list[Cell]:
    """All pairs. Raises EngramError for an unknown name or a parameter that its task does not have."""
    cores = config.cores or tuple(core_names())
    with user_errors():
        for task in config.tasks:
            find_task(task)
        for core in cores:
            core_class(core)
        for key in config.task_args:
            find_task(key.partition(".")[0].replace("_", "-"))
        for task in config.tasks:
            args = _task_args(config, task)
            make_task(task, recipe(task, cores[0]).learner.batch_size, args, seed=config.seed)
            make_tests(task, args, config.seed)
    return [Cell(task, core) for task in config.tasks for core in cores]


def _keep_settings(config: SuiteConfig, out: Path) -> None:
    """Save the settings of all cells. Raises EngramError if the folder contains a suite with other settings."""
    common = {"minutes": config.minutes, "lrs": list(config.lrs), "small": config.small, "seed": config.seed}
    common |= {"task_args": config.task_args}
    file = out / "suite.json"
    if file.exists():
        for name, previous in json.loads(file.read_text()).items():
            if previous != common[name]:
                raise EngramError(
                    f"{out} contains a suite with {name} = {previous!r}, not {common[name]!r}; choose another --out"
                )
    file.write_text(json.dumps(common))


def run_cell(config: SuiteConfig, cell: Cell, out: Path) -> str:
    """Search, continue with the best, test; returns an error message, "" for none. Finished parts are skipped."""
    folder = out / cell.task / cell.core
    if (folder / RESULT).exists():
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    searched = config.minutes / 2 / len(config.lrs)
    trials: list[tuple[float, Path]] = []
    for lr in config.lrs:
        run = folder / f"lr-{lr:g}"
        minutes = searched if len(config.lrs) > 1 else config.minutes
        if problem := _probe(config, cell, run, lr, minutes):
            return problem
        trials.append((json.loads((run / RESULT).read_text())["valid_accuracy"], run))
    _, best = max(trials, key=lambda trial: trial[0])
    if len(config.lrs) > 1 and (problem := _go_on(best, searched + config.minutes / 2)):
        return problem
    (folder / RESULT).write_text((best / RESULT).read_text())
    return ""


def _probe(config: SuiteConfig, cell: Cell, run: Path, lr: float, minutes: float) -> str:
    """Start or resume one run of `rl-probe`."""
    if (run / RESULT).exists():
        return ""
    if (run / "config.toml").exists():
        return _go_on(run, minutes)
    args = _task_args(config, cell.task)
    sizes = SMALL.get(cell.core, {}) if config.small else {}
    arguments = [cell.task, "--core", cell.core, "--lr", str(lr), "--minutes", str(minutes), "--seed", str(config.seed)]
    arguments += ["--test-sequences", str(config.test_sequences), "--run-dir", str(run)]
    arguments += ["--core-args", *_pairs(sizes)] if sizes else []
    return _call([*arguments, *(["--task-args", *_pairs(args)] if args else [])])


def _task_args(config: SuiteConfig, task: str) -> dict[str, Any]:
    """The user's parameters for one task."""
    prefix = f"{task.replace('-', '_')}."
    return {key.removeprefix(prefix): value for key, value in config.task_args.items() if key.startswith(prefix)}


def _go_on(run: Path, minutes: float) -> str:
    return _call(["--resume", str(run), "--minutes", str(minutes)])


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _call(arguments: list[str]) -> str:
    """Run `rl-probe` with these arguments in a child process; returns its last line if it failed or was stopped."""
    code = "import sys; from engram.launch.probe.command import run; run(sys.argv[1:])"
    # -P: the working directory does not precede the libraries; `run` appends it.
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode == 0:
        return next((line for line in done.stdout.splitlines() if line.startswith(STOPPED)), "")
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("rl-probe: ")
