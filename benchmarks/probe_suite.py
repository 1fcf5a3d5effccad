"""Every core on every task of rl-probe with one budget, as a leaderboard.

    python benchmarks/probe_suite.py --cores lstm rmc my_module:MyCore --tasks copy recall --minutes 5 --jobs 2

A cell is one core on one task. Half of its budget is split equally between the learning rates of a search. The
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

from engram.agents.cores.registry import core_class, core_names
from engram.base.errors import SEEDS, EngramError, above, check_span, user_errors
from engram.base.settings import Settings, setting
from engram.base.units import Minutes
from engram.envs.tasks.task import find_task, make_task
from engram.launch.config.command_line import make_console, parse, run_command
from engram.launch.metrics.provenance import machine
from engram.launch.probe.command import RESULT, STOPPED, recipe

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
    """Run the suite of the arguments; return the exit code."""
    config = parse(SuiteConfig, arguments, "probe_suite", __doc__ or "")
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
        print(f"probe_suite: {line}", file=sys.stderr)
    if read_results(out):
        console.print((out / "leaderboard.txt").read_text(), highlight=False, soft_wrap=True)
    return 1 if failed else 0


def cells_of(config: SuiteConfig) -> list[Cell]:
    """Return all pairs. Raises EngramError for an unknown name or a parameter that its task does not have."""
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
    """Search, continue the best run, and test; return an error message or "". Finished parts are skipped."""
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
    """Run `rl-probe` with these arguments in a child process; return its last line if it failed or was stopped."""
    code = "import sys; from engram.launch.entry import rl_probe; rl_probe(sys.argv[1:])"
    # -P: the working directory does not precede the libraries; `run` appends it.
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode == 0:
        return next((line for line in done.stdout.splitlines() if line.startswith(STOPPED)), "")
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("rl-probe: ")


Results = dict[tuple[str, str], dict[str, Any]]
"""Results by (task, core)."""


def read_results(out: Path) -> Results:
    """Read all finished cells of a suite."""
    every = [
        json.loads(path.read_text()) for path in sorted(out.glob(f"*/*/{RESULT}")) if path.parent.name[:3] != "lr-"
    ]
    return {(result["task"], result["core"]): result for result in every}


def write_leaderboard(out: Path, minutes: float) -> None:
    """Write leaderboard.txt, .md, .json and .png of the finished cells."""
    results = read_results(out)
    if not results:
        return
    tasks, cores = ranked(results)
    (out / "leaderboard.txt").write_text(as_text(results, tasks, cores))
    (out / "leaderboard.md").write_text(as_markdown(results, tasks, cores))
    summary = {
        "minutes": minutes,
        "machine": machine(),
        "results": [results[key] for key in sorted(results)],
    }
    (out / "leaderboard.json").write_text(json.dumps(summary, indent=1))
    draw(out / "leaderboard.png", results, tasks, cores, minutes)


def above_chance(result: dict[str, Any]) -> float:
    """Accuracy scaled to 0 at chance and 1 at perfect."""
    chance = result["chance"]
    return (result["accuracy"] - chance) / (1 - chance)


def ranked(results: Results) -> tuple[list[str], list[str]]:
    """Tasks in order of appearance; cores by their mean scaled accuracy over their tasks, best first."""
    tasks = list(dict.fromkeys(task for task, _ in results))
    means: dict[str, float] = {}
    for core in {core for _, core in results}:
        own = [above_chance(result) for (_, other), result in results.items() if other == core]
        means[core] = sum(own) / len(own)
    return tasks, sorted(means, key=lambda core: (-means[core], core))


def _cell(result: dict[str, Any] | None) -> str:
    """Format an accuracy with half the width of its interval, in percent."""
    if result is None:
        return "-"
    return f"{100 * result['accuracy']:.1f} ±{50 * (result['high'] - result['low']):.1f}"


def rows(results: Results, tasks: list[str], cores: list[str]) -> list[list[str]]:
    """The table with its header: per core its parameters, milliseconds per update (mean over tasks), every task."""
    table = [["core", "parameters", "ms/update", *tasks]]
    table.append(["chance", "", "", *(f"{100 * _any(results, task)['chance']:.1f}" for task in tasks)])
    for core in cores:
        own = [result for (_, other), result in results.items() if other == core]
        sizes = sorted(result["parameters"] for result in own)
        size = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,}..{sizes[-1]:,}"
        speed = sum(result["ms_per_update"] for result in own) / len(own)
        table.append([core, size, f"{speed:.1f}", *(_cell(results.get((task, core))) for task in tasks)])
    return table


def _any(results: Results, task: str) -> dict[str, Any]:
    return next(result for (other, _), result in results.items() if other == task)


def as_text(results: Results, tasks: list[str], cores: list[str]) -> str:
    """Format aligned columns."""
    table = rows(results, tasks, cores)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines) + "\n"


def as_markdown(results: Results, tasks: list[str], cores: list[str]) -> str:
    """Format a Markdown table."""
    heading, *table = rows(results, tasks, cores)
    lines = [heading, ["---"] * len(heading), *table]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


def draw(path: Path, results: Results, tasks: list[str], cores: list[str], minutes: float) -> None:
    """Draw the heat map: 0 is chance, 1 is perfect."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    nothing = float("nan")
    values = [
        [above_chance(results[task, core]) if (task, core) in results else nothing for task in tasks] for core in cores
    ]
    figure = Figure(figsize=(2.5 + 0.75 * len(tasks), 1.8 + 0.36 * len(cores)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right")
    axes.set_yticks(range(len(cores)), cores)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = "" if value != value else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="black" if value > 0.6 else "white")
    axes.set_title(f"answers above chance (1: all right), {minutes:g} min each", fontsize=9)
    figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run_command("probe_suite", main)
