"""`rl-compare`: compare runs with several seeds: curves, interquartile means, probabilities of improvement."""

import csv
import io
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from rich import box
from rich.table import Column, Table

from ...base.errors import advice, file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ..config.command_line import make_console, parse, settings_of
from ..config.plain import flat_settings, open_store, redacted, store_errors
from ..config.run_config import PASSIVE, RESUMABLE, RunConfig
from ..metrics.rows import Array, final_value, parse_log, series_of_run, table_of
from ..runs.directory import CONFIG
from .statistics import COVERAGE, Estimate, curve_of, improvement_of, interquartile_mean_of

METRICS = "metrics.jsonl"
POINTS = 100  # Number of points of a curve
ALL = "all"  # Name of the row for all environments together
FEW = 5  # Number of runs of a curve below which intervals are too narrow
STYLES = [(f"C{color}", dashes) for dashes in ("-", "--", ":") for color in range(10)]  # Color and line of a curve
_HELP = """Compare runs: curves with bands, interquartile means with bootstrap intervals, probabilities of improvement.

RUN is a run directory, a directory of several runs (from rl-train --seeds or --sweep, or any folder), or a URL of
either. Runs that differ only in their seeds are one curve."""


class LoadedRun(NamedTuple):
    name: str  # Path or URL, without secrets
    settings: dict[str, Any]  # Settings by dotted name; defaults for those that the run has not saved
    tables: list[dict[str, Array]]  # Metrics of the run, then of every member of a population


class Cell(NamedTuple):
    """Runs of one curve in one environment."""

    seeds: list[int]
    finals: Array  # [R]: mean of the metric over the last tenth of the steps that all runs have reached
    values: Array  # [R, S]: metric at the environment's steps


class Comparison(NamedTuple):
    """Curves in one or more environments."""

    metric: str
    environments: dict[str, Array]  # [S]: steps of the points of the curves, up to those that all runs have reached
    cells: dict[str, dict[str, Cell]]  # By curve and environment
    notes: list[str]  # Remarks for the reader of the comparison

    def strata(self, curve: str, among: Sequence[str]) -> list[Array]:
        """Final scores [R] of a curve by environment, scaled to 0..1 over all curves if `among` has several of them."""
        strata = [self.cells[curve][name].finals for name in among]
        for k, name in enumerate(among if len(among) > 1 else ()):
            every = np.concatenate([cells[name].finals for cells in self.cells.values() if name in cells])
            low, high = every.min(), every.max()
            strata[k] = (strata[k] - low) / (high - low) if high > low else np.full_like(strata[k], 0.5)
        return strata

    def shared(self, *curves: str) -> list[str]:
        """Environments in which all these curves have runs."""
        return [name for name in self.environments if all(name in self.cells[curve] for curve in curves)]


def load(sources: Sequence[str]) -> list[LoadedRun]:
    """Load all runs at these paths and URLs. Raises EngramError for one without runs or one that cannot be read."""
    defaults = dict(flat_settings(RunConfig()))
    loaded: dict[str, LoadedRun] = {}
    for source in sources:
        with store_errors(f"{redacted(source)} cannot be read", source):
            files, root = open_store(source)
            found = files.find(root, maxdepth=4)
            folders = sorted(file.removesuffix(f"/{CONFIG}") for file in found if file.endswith(f"/{CONFIG}"))
            name = redacted(source).rstrip("/")
            runs = [_read(files, folder, name + folder.removeprefix(root), defaults) for folder in folders]
        refuse(not runs, f"{redacted(source)} contains no run; expected: a run directory, or a folder or URL of runs")
        loaded |= {run.name: run for run in runs}
    return list(loaded.values())


def _read(files: Any, folder: str, name: str, defaults: dict[str, Any]) -> LoadedRun:
    with user_errors(f"{name}/{CONFIG} is damaged"):
        settings = dict(flat_settings(tomllib.loads(files.cat_file(f"{folder}/{CONFIG}").decode())))
    members = range(settings.get("population") or 0)
    paths = [f"{folder}/{METRICS}", *(f"{folder}/members/{member}/{METRICS}" for member in members)]
    tables = [table_of(parse_log(files.cat_file(path) if files.exists(path) else b"")) for path in paths]
    return LoadedRun(name, defaults | settings, tables)


def compare(runs: Sequence[LoadedRun], by: Sequence[str], metric: str) -> Comparison:
    """Group runs into curves. Raises EngramError for an unknown setting or metric."""
    metrics = dict.fromkeys(name for run in runs for table in run.tables for name in table)
    refuse(not metrics.keys() - {"step", "time", "wall_s"}, f"{runs[0].name} has no metrics yet")
    refuse(metric not in metrics, f"metric is {metric!r}, which no run has; {advice(metric, metrics)}")
    by = [_setting(name, runs) for name in by]
    where = [name for name in _varying(runs) if name.startswith("env_args.") and name not in by]
    places: dict[str, list[LoadedRun]] = {}
    for run in runs:
        places.setdefault(" ".join([run.settings["env"], *(_pair(run, name) for name in where)]), []).append(run)
    # Presets differ between environments: settings equal in all runs of each environment do not distinguish curves.
    varied = dict.fromkeys(name for together in places.values() for name in _varying(together))
    which = by or _distinguishing(list(varied), places) or ["agent.core"]
    others = sorted(set(varied) - set(which))
    comparison = Comparison(metric, {}, {}, [f"runs also differ in {', '.join(others)}"] if others else [])
    for place, together in places.items():
        _add_environment(comparison, place, together, which)
    refuse(not comparison.cells, f"no run has {metric} yet")
    return comparison


def _add_environment(comparison: Comparison, place: str, runs: Sequence[LoadedRun], which: Sequence[str]) -> None:
    """Add an environment with its cells to a comparison; the settings `which` distinguish curves."""
    metric, notes = comparison.metric, comparison.notes
    series = {run.name: series_of_run(run.tables, metric) for run in runs}
    notes += [f"left out because it has no {metric} yet: {run.name}" for run in runs if not len(series[run.name][0])]
    runs = [run for run in runs if len(series[run.name][0])]
    if not runs:
        return
    ends = [max(run.tables[0]["step"], default=0.0) for run in runs]
    if (end := min(ends)) < max(ends):
        notes.append(f"{place}: compared at {end:,.0f} steps, the last step of the shortest run")
    begin = min(max(series[run.name][0][0] for run in runs), end)
    comparison.environments[place] = points = np.linspace(begin, end, POINTS)
    finals = {run.name: final_value(*series[run.name], end) for run in runs}
    for curve in dict.fromkeys(_label(run, which) for run in runs):
        group = [run for run in runs if _label(run, which) == curve and np.isfinite(finals[run.name])]
        seeds = [run.settings["seed"] for run in group]
        if group:
            values = np.array([smoothed(*series[run.name], points) for run in group])
            cell = Cell(seeds, np.array([finals[run.name] for run in group]), values)
            comparison.cells.setdefault(curve, {})[place] = cell
        if len(set(seeds)) < len(seeds):
            notes.append(f"{curve} in {place}: runs with equal seeds are not independent")
    notes += [f"{name}: left out without {metric} up to {end:,.0f} steps" for name, x in finals.items() if np.isnan(x)]


def smoothed(steps: Array, values: Array, at: Array) -> Array:
    """Values [S] at steps `at` [S] of a series [K]: means over equal intervals of steps, interpolated linearly."""
    part = np.searchsorted(at, steps)
    means = [(steps[part == k].mean(), values[part == k].mean()) for k in np.unique(part)]
    return np.interp(at, *np.array(means).T)


def _varying(runs: Sequence[LoadedRun]) -> list[str]:
    """Settings other than the seed that differ between runs and affect learning."""
    passive = (RESUMABLE | PASSIVE) - {"start_from"}
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in passive)
    return [name for name in names if any(run.settings.get(name) != runs[0].settings.get(name) for run in runs)]


def _distinguishing(names: Sequence[str], places: dict[str, list[LoadedRun]]) -> list[str]:
    """A small subset of the settings that distinguishes as many curves; the core and the algorithm come first."""

    def curves(names: Sequence[str]) -> int:
        return sum(len({_label(run, names) for run in together}) for together in places.values())

    chosen: list[str] = []
    for name in sorted(names, key=lambda name: name not in ("agent.core", "learner.algorithm")):
        if curves([*chosen, name]) > curves(chosen):
            chosen.append(name)
    return chosen


def _setting(name: str, runs: Sequence[LoadedRun]) -> str:
    """Return the dotted name of a setting in `--by`, which may be a flag of `rl-train` or the end of the name."""
    dotted = {setting: setting for run in runs for setting in run.settings}
    names = {flag: ".".join(path) for flag, path in settings_of(RunConfig).items()} | dotted
    requested = name.removeprefix("--").replace("-", "_")
    ends = [setting for setting in dotted if setting.rpartition(".")[2] == requested]
    matches = [names[requested]] if requested in names else ends
    refuse(len(matches) != 1, f"by names {name!r}, which is not a setting of the runs; {advice(requested, names)}")
    return matches[0]


def _label(run: LoadedRun, names: Sequence[str]) -> str:
    pairs = [_pair(run, name) for name in names]
    return pairs[0].partition("=")[2] if len(pairs) == 1 else " ".join(pairs)


def _pair(run: LoadedRun, name: str) -> str:
    value = run.settings.get(name)
    text = "unset" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{name.rpartition('.')[2]}={text}"


class Result(NamedTuple):
    """A statistic of a curve in an environment."""

    statistic: str  # IQM, or P(better): the probability that a run is better than one of `versus`
    curve: str
    versus: str
    environment: str
    runs: int
    estimate: Estimate

    @property
    def text(self) -> str:
        value, low, high = self.estimate
        return f"{value:.3g}" if math.isnan(low) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def results(comparison: Comparison) -> list[Result]:
    """Interquartile means by environment and over all, then the probability of improvement of every pair."""
    compared: list[Result] = []
    for curve, cells in comparison.cells.items():
        for name in [*cells, *([ALL] if len(cells) > 1 else [])]:
            among = comparison.shared(curve) if name == ALL else [name]
            strata = comparison.strata(curve, among)
            compared.append(Result("IQM", curve, "", name, sum(map(len, strata)), interquartile_mean_of(strata)))
    for curve, other in permutations(comparison.cells, 2):
        if among := comparison.shared(curve, other):
            x, y = (comparison.strata(name, among) for name in (curve, other))
            where = among[0] if len(among) == 1 else ALL
            compared.append(Result("P(better)", curve, other, where, sum(map(len, x)), improvement_of(x, y)))
    return compared


def remarks(comparison: Comparison) -> list[str]:
    """Sentences that define the values, and warnings about the runs."""
    lines = [
        f"{comparison.metric}: mean over the last tenth of the steps; IQM: interquartile mean over runs; brackets: "
        f"{COVERAGE:.0%} interval of a stratified bootstrap over runs"
    ]
    if len(comparison.environments) > 1:
        lines.append(f"{ALL}: each environment scaled to 0..1 by the lowest and highest final value of these runs")
    fewest = min(len(cell.seeds) for cells in comparison.cells.values() for cell in cells.values())
    if fewest < FEW:
        lines.append(f"{fewest} run{'s' * (fewest > 1)} in a curve: bootstrap intervals are too narrow or missing")
    return lines + comparison.notes


def tables(compared: Sequence[Result]) -> list[tuple[list[str], list[list[str]]]]:
    """Return header and rows of the means, and of the probabilities if there are several curves."""
    means = [[x.curve, x.environment, f"{x.runs}", x.text] for x in compared if not x.versus]
    pairs = [[x.curve, x.versus, x.environment, x.text] for x in compared if x.versus]
    parts = [(["curve", "environment", "runs", "IQM"], means)]
    return [*parts, (["curve", "versus", "environment", "P(better)"], pairs)] if pairs else parts


def markdown(comparison: Comparison, compared: Sequence[Result], image: str) -> str:
    """Return a page with the image, the tables and the remarks."""
    lines = [f"![{comparison.metric}]({image})", ""]
    for header, rows in tables(compared):
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        lines += [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)] + [""]
    return "\n".join([*lines, *(f"- {line}" for line in remarks(comparison)), ""])


def comma_separated(compared: Sequence[Result]) -> str:
    """Return CSV with a row per statistic, in full precision; cells without a value are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["statistic", "curve", "versus", "environment", "runs", "value", "low", "high"])
    for result in compared:
        writer.writerow([*result[:-1], *("" if math.isnan(x) else repr(x) for x in result.estimate)])
    return out.getvalue()


def draw(comparison: Comparison) -> bytes:
    """Return a figure with a panel per environment as PNG: interquartile means with bands, and a thin line per run."""
    from matplotlib.figure import Figure  # takes half a second

    places = list(comparison.environments)
    figure = Figure((5.0 * len(places), 4.0), layout="tight")
    panels: Any = figure.subplots(1, len(places), squeeze=False)[0]
    for axes, place in zip(panels, places, strict=True):
        steps = comparison.environments[place] / 1e6
        for index, (curve, cells) in enumerate(comparison.cells.items()):
            if place in cells:
                finals, values = cells[place].finals, cells[place].values
                color, dashes = STYLES[index % len(STYLES)]
                middle, low, high = curve_of(values)
                axes.plot(steps, middle, dashes, color=color, label=f"{curve} ({len(finals)})")
                if len(finals) > 1:
                    axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
                    axes.plot(steps, values.T, color=color, alpha=0.3, linewidth=0.5)
        axes.set(title=place, xlabel="million environment steps", ylabel=comparison.metric)
        axes.legend(fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150, metadata={"Software": None})  # pyright: ignore[reportUnknownMemberType]
    return out.getvalue()


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Settings):
    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Run directories, directories of several runs, or URLs."""
    by: tuple[str, ...] = ()
    """Settings that distinguish curves, such as core or lr; by default all that differ except the seed."""
    metric: str = "episode/return"
    """Metric to compare; higher is better."""
    out: Annotated[str, tyro.conf.arg(metavar="NAME")] = setting("", file="")
    """Write NAME.png, NAME.md and NAME.csv."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not self.runs, "no run is named; expected: rl-compare RUN...")


def main(arguments: Sequence[str]) -> int:
    config = parse(CompareConfig, arguments, "rl-compare", _HELP)
    comparison = compare(load(config.runs), config.by, config.metric)
    compared, console = results(comparison), make_console()
    for header, rows in tables(compared):
        table = Table(*(Column(name, overflow="fold") for name in header), box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in remarks(comparison):
        console.print(line, soft_wrap=True)
    if config.out:
        page = markdown(comparison, compared, f"{Path(config.out).name}.png")
        files = {"png": draw(comparison), "md": page.encode(), "csv": comma_separated(compared).encode()}
        for ending, content in files.items():
            with file_errors(f"--out: cannot write {config.out}.{ending}"):
                replace_file(Path(f"{config.out}.{ending}"), content)
        console.print(f"wrote {config.out}.{{{','.join(files)}}}", soft_wrap=True)
    return 0
