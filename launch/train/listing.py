"""`rl-train --list`: all names that the command line accepts, one line each."""

import inspect
import tomllib
from importlib.resources import files

from rich.console import Console
from rich.table import Column, Table

from ... import zoo
from ...agents.cores.registry import core_class, core_names
from ...envs.registration import ENVIRONMENTS, batch_class, purpose
from ...learners.algorithms import algorithm_class, algorithm_names
from ..config.presets.lookup import PRESETS


def show(console: Console) -> None:
    """Print the names of each section with their descriptions."""
    folder = files(__name__.removesuffix("train.listing") + "figures") / "data"
    figures = {file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8")) for file in folder.iterdir()}
    environments = {name: ", ".join(preset.environments) for name, preset in PRESETS.items()}
    sections = {
        "environments (--env)": [
            *((name, purpose(batch_class(environment))) for name, environment in ENVIRONMENTS.items()),
            ("NAME-twin", "the same environment, which then needs no memory"),
        ],
        "cores (--core)": [(name, _first_line(core_class(name))) for name in core_names()],
        "algorithms (--algorithm)": [(name, _first_line(algorithm_class(name))) for name in algorithm_names()],
        "presets (--preset)": [
            ("paper", f"the papers' settings: {environments['paper']}; with the paper's core also its size"),
            ("easy", f"levels that are learned in minutes: {environments['easy']}"),
            ("curriculum", f"the papers' environments, learned in stages: {environments['curriculum']}"),
        ],
        "pairs with a paper's core options": [
            (f"{environment} {core}", " ".join(f"{key}={x}" for key, x in preset["agent"]["core_args"].items()))
            for (environment, core), preset in PRESETS["paper"].cores.items()
        ],
        "figures of papers (rl-reproduce NAME)": [
            (name, f"{data['title']}; {data['paper']}, {data['place']}") for name, data in sorted(figures.items())
        ],
        "trained agents (rl-eval zoo:NAME, --start-from)": [
            (f"zoo:{name}", zoo.facts(name)["env"]) for name in zoo.names()
        ],
    }
    for kind, lines in sections.items():
        columns = Column(no_wrap=True, style="cyan"), Column(overflow="fold")
        table = Table(*columns, title=kind, title_justify="left", title_style="bold", box=None, show_header=False)
        for line in lines:
            table.add_row(*line)
        console.print(table)
        console.print()


def _first_line(thing: type) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
