"""`rl-check-core`: a certificate of correct recurrence for a built-in or custom core."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import tyro
from rich.text import Text

from ...agents.certificate.certificate import certify, core_size
from ...agents.cores import make_core
from ...agents.process import prepare_process
from ...base.errors import user_errors
from ...base.settings import Settings, setting
from ..config.command_line import make_console, parse

_HELP = """Check a memory core line by line: whether its state is reset, carried, detached and stored correctly.

NAME is a registered core or module:Class. Exit code 0 if every line passes, 1 if one fails, 2 for invalid arguments."""


@dataclass(frozen=True, kw_only=True)
class CheckConfig(Settings):
    core: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CORE")]
    """A registered core or module:Class."""
    core_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of the core, KEY=VALUE."""
    input_size: int = setting(16, (3, None))
    """Number of input features, at least 3."""
    seed: int = 0
    """Seed of weights and inputs."""
    long_run: int = setting(10_000, (1, None))
    """Steps of the long run, at least 1."""


def main(arguments: Sequence[str]) -> int:
    config = parse(CheckConfig, arguments, "rl-check-core", _HELP)
    prepare_process(1)
    console, started = make_console(), time.perf_counter()
    make = partial(make_core, config.core, config.input_size, **config.core_args)
    with user_errors():
        core = make()
    parameters, state_bytes = core_size(core)
    console.print(
        f"{config.core}: {parameters:,} parameters, {state_bytes:,} bytes of state per environment, "
        f"{config.input_size} inputs -> {core.output_size} outputs",
        soft_wrap=True,
    )
    passed: list[bool] = []
    for line in certify(make, config.input_size, config.seed, config.long_run):
        verdict, style = ("pass", "green") if line.passed else ("FAIL", "bold red")
        detail = (line.detail, "dim" if line.passed else style)
        console.print(Text.assemble((f"  {verdict}  ", style), f"{line.name:<32}", detail), soft_wrap=True)
        passed.append(line.passed)
    console.print(f"{sum(passed)} of {len(passed)} passed in {time.perf_counter() - started:.0f} s")
    return 0 if all(passed) else 1
