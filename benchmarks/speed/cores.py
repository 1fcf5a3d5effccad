"""Size and speed of every memory core alone, at its paper's setting: `python benchmarks/speed/cores.py --help`."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from rich.table import Table
from torch import Tensor

from engram.agents.certificate.certificate import core_size
from engram.agents.cores.core import Core, map_state, unroll_step_by_step
from engram.agents.cores.registry import core_names, make_core
from engram.agents.kernels import linear
from engram.agents.process import prepare_process
from engram.base.errors import user_errors
from engram.base.units import Seconds
from engram.launch.config.command_line import make_console, parse, run_command
from engram.launch.config.run_config import find_device
from engram.launch.config.run_flags import preset
from engram.launch.metrics.provenance import provenance

SETTINGS = {
    "concrete": ("t-maze", 128),
    "fwm": ("pomdp-graph", 17),
    "mnm-g": ("maze", 11),
    "mnm-p": ("maze", 11),
    "parallel": ("t-maze", 128),
}
"""Environment whose preset gives a core's options, and numbers that the core sees per step there."""
BOXWORLD = ("boxworld", 650)
"""The same for all other cores: the convolutional features of BoxWorld's viewport."""
SMALL_POOLS = {"pool_size": 16, "num_pools": 8, "viewport_size": 6, "summarizer_size": 32}
VARIANTS = {"concrete-small": ("concrete", 8, SMALL_POOLS)}
"""More settings, by a name for the table: core, numbers per step, options. Of the search of Stepleton et al. 2018,
table 1."""
UNROLL_LENGTHS = {"concrete": 300, "concrete-small": 300, "parallel": 300}
"""Steps of an unroll, as in the paper."""
USUAL_LENGTH = 40
"""The same for all other cores."""
RESET_DENSITY = 1 / 30
"""Share of steps that begin an episode."""
PRODUCT = (128, 256, 768)
"""Rows, inputs and outputs of the yardstick: RMC's largest product for 32 rows of 4 slots."""

_HELP = """Parameters, state and speed of memory cores, each alone: one step for acting, an unroll with its gradient for
learning. For comparison, the speed of a matrix multiplication on the same machine, in the same run."""


@dataclass(frozen=True, kw_only=True)
class CoresConfig:
    """Settings of the measurement."""

    cores: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of cores, registered or module:Class; all registered ones if none is given."""
    batch_sizes: tuple[int, ...] = (32, 128)
    """Rows that are stepped, and unrolled, together."""
    threads: tuple[int, ...] = (1, 2)
    """CPU threads per operation."""
    unroll_length: int = 0
    """Steps of an unroll; 0: 300 for the pools, whose paper has that, and 40 for all others."""
    input_size: int = 0
    """Numbers that every core sees per step; 0: what its paper's environment shows it."""
    device: str = "cpu"
    """Where to run: cpu, cuda or auto."""
    seconds: Seconds = 1.0
    """Time of each measurement; a plain number is in seconds."""
    json: str = ""
    """File for everything measured, with machine, versions and commit."""

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "threads"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: numbers of at least 1")
        for name in ("unroll_length", "input_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: at least 0")
        if self.seconds <= 0:
            raise ValueError(f"seconds is {self.seconds}; allowed: above 0")


class CoreSpeed(NamedTuple):
    """Steps per second, one step being one row's."""

    acting: float
    """`core(inputs, state)` without gradients."""
    learning: float
    """`core.unroll` with resets, and its gradient."""
    looped: float
    """The same unroll as the plain loop over the core's steps, and its gradient."""
    unrolling: float
    """`core.unroll` with resets, without gradients."""
    unrolling_looped: float
    """The same as the plain loop."""

    @property
    def gains(self) -> tuple[float, float]:
        """How much faster than the plain loop: learning, unrolling."""
        return self.learning / self.looped, self.unrolling / self.unrolling_looped


def best_seconds(works: Sequence[Callable[[], Any]], seconds: float, threads: int, device: torch.device) -> list[float]:
    """The shortest time that each of some works takes when all are repeated in turn, for some seconds per work.

    In turn, so that neighbors who come and go slow what is compared alike. On a CPU CPU time per thread, so that
    waiting for a core that others use does not count; else wall time.
    """
    best = [float("inf")] * len(works)
    for work in works:
        work()
    end = time.perf_counter() + seconds * len(works)
    while True:
        for i, work in enumerate(works):
            wall, processor = time.perf_counter(), time.process_time()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spent = time.perf_counter() - wall
            if device.type == "cpu":
                spent = min(spent, (time.process_time() - processor) / threads)
            best[i] = min(best[i], spent)
        if time.perf_counter() > end:
            return best


def product_speeds(seconds: float, threads: int, device: torch.device) -> dict[str, float]:
    """The yardstick: 10^9 operations per second of products x weight^T by torch and by us, PRODUCT being the sizes."""
    rows, inputs, outputs = PRODUCT
    x, weight = torch.randn(rows, inputs, device=device), torch.randn(outputs, inputs, device=device)
    routes: dict[str, Callable[[], Tensor]] = {
        "torch.mm": lambda: torch.mm(x, weight.t()),
        "engram": lambda: linear(x, weight),
    }

    def repeated(product: Callable[[], Tensor]) -> None:
        for _ in range(10):
            product()

    with torch.inference_mode():
        times = best_seconds([partial(repeated, each) for each in routes.values()], seconds, threads, device)
    return {name: 10 * 2e-9 * rows * inputs * outputs / time for name, time in zip(routes, times, strict=True)}


def core_speed(
    core: Core, input_size: int, batch_size: int, unroll_length: int, seconds: float, threads: int
) -> CoreSpeed:
    """Measure a core that is on its device, with `threads` threads, which the caller has set."""
    device = next(core.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    shape = (unroll_length, batch_size)
    inputs = torch.randn(*shape, input_size, device=device, generator=generator).requires_grad_()
    reset = torch.rand(*shape, device=device, generator=generator) < RESET_DENSITY
    state = core.initial_state(batch_size)
    row = inputs[0].detach()

    def act() -> None:
        nonlocal state
        with torch.inference_mode():
            for _ in range(10):
                _, state = core(row, state)

    def learn(unroll: Callable[..., Any]) -> None:
        outputs, _, loss = unroll(core, inputs, reset, start)
        total = outputs.square().mean()
        (total if loss is None else total + loss.mean()).backward()
        core.zero_grad()
        inputs.grad = None

    def only_unroll(unroll: Callable[..., Any]) -> None:
        with torch.no_grad():
            unroll(core, inputs, reset, start)

    act()
    start = map_state(torch.clone, state)  # what acting left, as ordinary tensors
    ways = (type(core).unroll, unroll_step_by_step)
    works = [act, *(partial(learn, way) for way in ways), *(partial(only_unroll, way) for way in ways)]
    acting, *unrolls = best_seconds(works, seconds, threads, device)
    return CoreSpeed(10 * batch_size / acting, *(unroll_length * batch_size / each for each in unrolls))


def paper_core(name: str, input_size: int = 0) -> tuple[Core, int]:
    """A core with its paper's options, and the numbers that it sees per step (`input_size` if that is not 0)."""
    if name in VARIANTS:
        core, size, options = VARIANTS[name]
        return make_core(core, input_size or size, **options), input_size or size
    environment, size = SETTINGS.get(name, BOXWORLD)
    size = input_size or size
    return make_core(name, size, **preset("paper", environment, name).agent.core_args), size


def main(arguments: Sequence[str]) -> int:
    """Measure according to the arguments; returns the exit code."""
    config = parse(CoresConfig, arguments, "cores.py", _HELP)
    console = make_console()
    device = find_device(config.device)
    prepare_process(1)
    names = config.cores or (*core_names(), *VARIANTS)
    with user_errors():
        sizes = {name: paper_core(name, config.input_size) for name in names}
    results: dict[str, Any] = {"device": str(device), "products": {}, "cores": {}}
    for threads in config.threads:
        torch.set_num_threads(threads)
        results["products"][threads] = product_speeds(config.seconds, threads, device)
    for name, (core, size) in sizes.items():
        console.print(f"measuring {name}", style="dim")
        length = config.unroll_length or UNROLL_LENGTHS.get(name, USUAL_LENGTH)
        results["cores"][name] = _measure(core.to(device), size, length, config)
    for table in (_product_table(results), _core_table(results)):
        console.print(table)
    if config.json:
        Path(config.json).write_text(json.dumps(provenance() | results, indent=1) + "\n")
    return 0


def _measure(core: Core, input_size: int, length: int, config: CoresConfig) -> dict[str, Any]:
    parameters, state_bytes = core_size(core)
    speeds: dict[str, dict[str, CoreSpeed]] = {}
    for threads in config.threads:
        torch.set_num_threads(threads)
        speeds[str(threads)] = {
            str(batch): core_speed(core, input_size, batch, length, config.seconds, threads)
            for batch in config.batch_sizes
        }
    by_name = {
        t: {b: speed._asdict() | {"gains": speed.gains} for b, speed in each.items()} for t, each in speeds.items()
    }
    sizes = {"input_size": input_size, "parameters": parameters, "state_bytes": state_bytes, "unroll_length": length}
    return sizes | {"threads": by_name}


def _product_table(results: dict[str, Any]) -> Table:
    rows, inputs, outputs = PRODUCT
    table = Table(title=f"Matrix product {rows} x {inputs} x {outputs}, float32, GFLOP/s")
    for column in ("threads", "torch.mm", "engram"):
        table.add_column(column, justify="right")
    for threads, speeds in results["products"].items():
        table.add_row(str(threads), *(f"{speed:,.0f}" for speed in speeds.values()))
    return table


def _core_table(results: dict[str, Any]) -> Table:
    table = Table(title="Steps per second; learning: an unroll and its gradient; x: times as fast as step by step")
    table.add_column("core")
    for column in (
        *("inputs", "parameters", "state bytes", "steps", "threads", "batch", "acting"),
        *("learning", "step by step", "unrolling", "step by step", "x learning", "x unrolling"),
    ):
        table.add_column(column, justify="right")
    for name, each in results["cores"].items():
        sizes = ("input_size", "parameters", "state_bytes", "unroll_length")
        head = [name, *(f"{each[key]:,}" for key in sizes)]
        for threads, by_batch in each["threads"].items():
            for batch, speed in by_batch.items():
                rates = [f"{speed[field]:,.0f}" for field in CoreSpeed._fields]
                table.add_row(*head, threads, batch, *rates, *(f"{gain:.1f}" for gain in speed["gains"]))
                head = [""] * len(head)
        table.add_section()
    return table


if __name__ == "__main__":
    run_command("cores.py", main)
