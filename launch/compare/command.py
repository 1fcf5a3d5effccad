"""`rl-compare`: compare runs with several seeds: curves, interquartile means, probabilities of improvement."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich import box
from rich.table import Column, Table

from ...base.errors import file_errors, refuse
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ..config.command_line import make_console, parse
from .groups import Comparison, compare, load
from .statistics import COVERAGE, Estimate, curve_of, improvement_of, interquartile_mean_of

ALL = "all"  # Name of the row for all environments together
FEW = 5  # Number of runs of a curve below which intervals are too narrow
STYLES = [(f"C{color}", dashes) for dashes in ("-", "--", ":") for color in range(10)]  # Color and line of a curve
_HELP = """Compare runs: curves with bands, interquartile means with bootstrap intervals, probabilities of improvement.

RUN is a run directory, a directory of several runs (from rl-train --seeds or --sweep, or any folder), or a URL of
either. Runs that differ only in their seeds are one curve."""


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
        """Value and interval."""
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
    """The runs to compare, and the metric."""

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
    """Compare according to the arguments; return the exit code."""
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
