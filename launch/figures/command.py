"""`rl-reproduce`: a figure of a paper, from training to plot."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Column, Table

from ...base.errors import file_errors, refuse
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ...base.units import Minutes
from ..cluster.scheduler import RunFailedError, run_shown, signals_as_interrupt
from ..config.command_line import make_console, parse
from . import results
from .figure import Figure, FigureRun, load, names

_HELP = """Reproduce a figure of the papers: train its curves, evaluate them on new levels, and plot them with the
paper's results. After a stop, the same command resumes its runs."""


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig(Settings):
    figure: tyro.conf.Positional[str] = ""
    """Name of a figure (--list shows all), or a custom data file FILE.toml."""
    list: bool = False
    """List all figures: the paper's result, ours with its seeds, steps and hours."""
    quick: bool = False
    """A smaller or easier variant; --list shows its minutes, and docs/results.md explains its results."""
    jobs: int = setting(max(1, (os.cpu_count() or 1) // 2), (1, None))
    """Number of concurrent runs, at least 1; each takes a core."""
    curves: tuple[str, ...] = ()
    """Only these curves; in a figure with tasks, CORE selects all of its curves CORE.TASK."""
    seeds: tuple[int, ...] = ()
    """Only these seeds of the figure."""
    minutes: Minutes = setting(0.0, (0, None))
    """Stop after this time and show the results so far; a plain number is in minutes, 0 sets no limit."""
    collect: bool = False
    """Do not train: evaluate the existing runs, and write results."""
    runs: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/figures")
    """Folder of the run directories."""
    results: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("benchmarks/results/figures")
    """Folder for FIGURE.json and FIGURE.png."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not (self.list or self.figure), f"no figure is named; available: {', '.join(names())}")

    @property
    def size(self) -> str:
        return "quick" if self.quick else "full"


def main(arguments: Sequence[str]) -> int:
    """List or reproduce according to the arguments; return the exit code: 0 if every run is finished, else 1."""
    config = parse(ReproduceConfig, arguments, "rl-reproduce", _HELP)
    console = make_console()
    if config.list:
        console.print(listing(config.results))
        return 0
    figure = load(config.figure)
    refuse(config.size not in figure.settings, f"figure {figure.name} has no quick setting")
    runs = chosen_runs(figure, config)
    for run in runs:
        run.check()
    console.print(forecast(figure, runs, config))
    deadline = time.monotonic() + 60 * config.minutes if config.minutes else float("inf")
    try:
        with signals_as_interrupt():
            if config.collect or not run_shown(runs, config.jobs, console, deadline):
                _evaluate_unfinished(runs, console)
    except RunFailedError as problem:
        console.print(f"rl-reproduce: {problem}")
    except KeyboardInterrupt:
        console.print("stopped; run the same command to continue")
        return 1
    write_results(figure, config, runs, console)
    return 0 if all(run.finished for run in runs) else 1


def chosen_runs(figure: Figure, config: ReproduceConfig) -> list[FigureRun]:
    """Return the requested runs, seed by seed, so that all curves have one seed before any has two."""
    setting = figure.settings[config.size]
    curves = dict.fromkeys(name for curve in setting.curves for name in (curve.core, curve.name) if name)
    for kind, requested, allowed in (("curve", config.curves, curves), ("seed", config.seeds, setting.seeds)):
        for name in requested:
            text = f"figure {figure.name} ({config.size}) has no {kind} {name!r}"
            refuse(name not in allowed, f"{text}; allowed: {', '.join(map(str, allowed))}")
    folder = config.runs / figure.name / config.size
    return [
        FigureRun(folder / f"{curve.name}-{seed}", f"{curve.name}, seed {seed}", figure, curve, seed)
        for seed in setting.seeds
        for curve in setting.curves
        if (not config.curves or {curve.name, curve.core} & {*config.curves})
        and (not config.seeds or seed in config.seeds)
    ]


def forecast(figure: Figure, runs: Sequence[FigureRun], config: ReproduceConfig) -> str:
    setting = figure.settings[config.size]
    left = sum(max(0, run.curve.steps - run.steps()) for run in runs)
    line = f"{figure.title}: {len(runs)} runs, {left / 1e6:,.1f} M steps to go."
    if speed := setting.steps_per_second:
        hours = left / speed / 3600 / min(config.jobs, max(1, len(runs)))
        duration = f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        line += f" About {duration} with {config.jobs} at a time, at {speed:,.0f} steps/s per core."
    return f"{line}\n{setting.note}" if setting.note else line


def listing(folder: Path) -> Table:
    labels = ("figure", "the paper", "ours", "seeds", "steps", "hours", "quick")
    columns = (Column(label, no_wrap=label != "the paper", overflow="fold") for label in labels)
    caption = "hours of one core, all curves and seeds"
    table = Table(*columns, box=None, pad_edge=False, caption=caption, caption_justify="left")
    for name in names():
        figure = load(name)
        full, quick, file = figure.settings["full"], figure.settings.get("quick"), folder / f"{name}.json"
        ours = results.reached(json.loads(file.read_text())) if file.is_file() else {}
        table.add_row(
            name,
            "\n".join((figure.source, *(f"{line.label} {line.value:g}" for line in figure.published))),
            "\n".join(f"{name} {mean:.3g}" for name, (mean, _) in ours.items()) or "-",
            "\n".join(str(seeds) for _, seeds in ours.values()) or "-",
            f"{full.steps / 1e6:,.0f} M",
            f"{full.core_hours:,.0f}" if full.core_hours else "-",
            f"{60 * quick.core_hours:,.0f} min" if quick and quick.core_hours else "-",
            end_section=True,
        )
    return table


def write_results(figure: Figure, config: ReproduceConfig, runs: Sequence[FigureRun], console: Console) -> None:
    stem = config.results / (figure.name if config.size == "full" else f"{figure.name}-quick")
    file, image = Path(f"{stem}.json"), Path(f"{stem}.png")
    before = json.loads(file.read_text()) if file.is_file() else {}
    document = results.collect(figure, config.size, runs, before)
    if not document["curves"]:
        console.print("nothing has been trained yet, so nothing is written")
        return
    with file_errors(f"cannot write {stem}.json and .png"):
        config.results.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(document, indent=1) + "\n").encode())
        results.draw(document, figure.title, image)
    console.print(f"wrote {stem}.json and .png")


def _evaluate_unfinished(runs: Sequence[FigureRun], console: Console) -> None:
    failed: list[str] = []
    for run in runs:
        step = run.checkpoint_step()
        if step and not (run.evaluation_file.exists() and run.evaluation()["step"] == step):
            try:
                run.complete()
                console.print(run.outcome("evaluated"))
            except RunFailedError as problem:
                failed.append(str(problem))
    if failed:
        raise RunFailedError("; ".join(failed))
