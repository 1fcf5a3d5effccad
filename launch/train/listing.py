"""`rl-train --list`: all names that the command line accepts, one line each."""

import inspect
import tomllib
from collections.abc import Iterator
from importlib.resources import files

from rich.console import Console
from rich.table import Column, Table

from ... import zoo
from ...agents.cores.registry import core_class, core_names
from ...envs.registration import ENVIRONMENTS, batch_class, purpose
from ...learners.algorithms.registry import algorithm_class, algorithm_names
from ..config.presets.curriculum import CURRICULUM
from ..config.presets.easy import EASY
from ..config.presets.paper import CORES, PAPER, Preset

Line = tuple[str, str]  # A name and its description


def sections() -> Iterator[tuple[str, list[Line]]]:
    environments = [(name, purpose(batch_class(environment))) for name, environment in ENVIRONMENTS.items()]
    yield "environments (--env)", [*environments, ("NAME-twin", "the same environment, which then needs no memory")]
    yield "cores (--core)", [(name, _first_line(core_class(name))) for name in core_names()]
    yield "algorithms (--algorithm)", [(name, _first_line(algorithm_class(name))) for name in algorithm_names()]
    presets = [
        ("paper", f"the papers' settings: {', '.join(PAPER)}; with the paper's core also its size"),
        ("easy", f"levels that are learned in minutes: {', '.join(EASY)}"),
        ("curriculum", f"the papers' environments, learned in stages: {', '.join(CURRICULUM)}"),
    ]
    yield "presets (--preset)", presets
    pairs = [(f"{environment} {core}", _options(preset)) for (environment, core), preset in CORES.items()]
    yield "pairs with a paper's core options", pairs
    yield "figures of papers (rl-reproduce NAME)", list(_figures())
    agents = [(f"zoo:{name}", zoo.facts(name)["env"]) for name in zoo.names()]
    yield "trained agents (rl-eval zoo:NAME, --start-from)", agents


def _figures() -> Iterator[Line]:
    """Yield a line per data file of launch/figures; the list needs nothing else from that folder."""
    folder = files(__name__.removesuffix("train.listing") + "figures") / "data"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        data = tomllib.loads(file.read_text("utf-8"))
        yield file.name.removesuffix(".toml"), f"{data['title']}; {data['paper']}, {data['place']}"


def show(console: Console) -> None:
    for kind, lines in sections():
        columns = Column(no_wrap=True, style="cyan"), Column(overflow="fold")
        table = Table(*columns, title=kind, title_justify="left", title_style="bold", box=None, show_header=False)
        for line in lines:
            table.add_row(*line)
        console.print(table)
        console.print()


def _first_line(thing: type) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _options(preset: Preset) -> str:
    return " ".join(f"{key}={value}" for key, value in preset["agent"]["core_args"].items())
