"""`rl-compare`: compare runs with several seeds: curves, interquartile means, probabilities of improvement."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...base.errors import file_errors, refuse
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ..config.command_line import make_console, parse
from .groups import compare, load
from .report import comma_separated, draw, markdown, results, show

_HELP = """Compare runs: curves with bands, interquartile means with bootstrap intervals, probabilities of improvement.

RUN is a run directory, a directory of several runs (from rl-train --seeds or --sweep, or any folder), or a URL of
either. Runs that differ only in their seeds are one curve."""


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
    show(comparison, compared, console)
    if config.out:
        files = {"png": draw(comparison), "csv": comma_separated(compared).encode()}
        files["md"] = markdown(comparison, compared, f"{Path(config.out).name}.png").encode()
        for ending, content in files.items():
            with file_errors(f"--out: cannot write {config.out}.{ending}"):
                replace_file(Path(f"{config.out}.{ending}"), content)
        console.print(f"wrote {config.out}.{{{','.join(files)}}}", soft_wrap=True)
    return 0
