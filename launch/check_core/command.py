"""`rl-check-core`: a certificate of correct recurrence for a built-in or custom core."""

import copy
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.text import Text

from ...actors.unroll import Unroll, join, some_environments
from ...agents.agent import AgentState
from ...agents.certificate.certificate import Line, certify, core_size
from ...agents.certificate.probe import ENVS, STEPS, Probe, by_unroll, fail_if, require_equal, summed
from ...agents.cores import make_core
from ...agents.cores.core import Core, CoreState, state_leaves
from ...agents.process import prepare_process
from ...agents.values import AgentOutput, EnvOutput
from ...base.errors import library_errors, user_errors
from ...base.settings import Settings, setting
from ...learners.optimizers import make_optimizer, same_layout, set_gradients
from ..config.command_line import make_console, parse

_HELP = """Check a memory core line by line: whether its state is reset, carried, detached and stored correctly.

NAME is a registered core or module:Class. Exit code 0 if every line passes, 1 if one fails, 2 for invalid arguments."""


@dataclass(frozen=True, kw_only=True)
class CheckConfig(Settings):
    """The core to check, and the settings."""

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
    """Print the certificate of the core in the arguments; return the exit code."""
    config = parse(CheckConfig, arguments, "rl-check-core", _HELP)
    prepare_process(1)
    console = make_console()
    options = ", ".join(f"{key}={value!r}" for key, value in config.core_args.items()) or "its defaults"
    with user_errors(), library_errors(f"cannot make core {config.core!r} with {options}", TypeError, RuntimeError):
        core = make_core(config.core, config.input_size, **config.core_args)
    parameters, state_bytes = core_size(core)
    console.print(
        f"{config.core}: {parameters:,} parameters, {state_bytes:,} bytes of state per environment, "
        f"{config.input_size} inputs -> {core.output_size} outputs",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if certificate(config, console) else 1


def certificate(config: CheckConfig, console: Console) -> bool:
    """Print each line when its check ends; return whether all pass."""

    def make() -> Core:
        return make_core(config.core, config.input_size, **config.core_args)

    started = time.perf_counter()
    more = (("state can be serialized", state_travels), ("gradient memory layout", gradients_in_memory_order))
    passed: list[bool] = []
    for line in certify(make, config.input_size, config.seed, config.long_run, more=more):
        passed.append(line.passed)
        show(line, console)
    seconds = time.perf_counter() - started
    console.print(f"{sum(passed)} of {len(passed)} passed in {seconds:.0f} s", highlight=False)
    return all(passed)


def show(line: Line, console: Console) -> None:
    """Print one line of the certificate."""
    verdict, style = ("pass", "green") if line.passed else ("FAIL", "bold red")
    detail = (line.detail, "dim" if line.passed else style)
    console.print(Text.assemble((f"  {verdict}  ", style), f"{line.name:<32}", detail), soft_wrap=True)


def state_travels(probe: Probe) -> str:
    """Check that a state is unchanged after an Unroll is pickled, split by environment and joined again."""
    state: CoreState = probe.state
    flags = torch.zeros(STEPS + 1, ENVS, dtype=torch.bool)
    unroll = Unroll(
        initial_state=AgentState(state, torch.full((ENVS,), -1), torch.arange(ENVS), flags[0]),
        env=EnvOutput(torch.randn(STEPS + 1, ENVS, 3), torch.randn(STEPS + 1, ENVS), flags, flags),
        agent=AgentOutput(flags[1:].long(), torch.randn(STEPS, ENVS, 2), torch.randn(STEPS, ENVS)),
        weights_version=torch.zeros(ENVS, dtype=torch.int64),
        member=0,
        actor=0,
        episodes=torch.zeros(0, 3),
        seconds=0.0,
    )
    received: Unroll = pickle.loads(pickle.dumps(unroll))
    parts = [some_environments(received, slice(0, 1)), some_environments(received, slice(1, ENVS))]
    back = join(parts).initial_state.core
    fail_if(type(back) is not type(state), f"{type(state).__name__} came back as {type(back).__name__}")
    fail_if(
        not all(torch.equal(a, b) for a, b in zip(state_leaves(back), state_leaves(state), strict=True)),
        "the values changed",
    )
    return "pickled, split by environment and joined"


def gradients_in_memory_order(probe: Probe) -> str:
    """Check that gradients have the memory layout of their parameters: a step of fused Adam equals one of plain Adam.
    The fused kernel reads weights and gradients as flat memory, so different strides would pair the wrong elements."""
    core = probe.make()  # not a deepcopy: a copy of a parameter with gaps has no gaps
    plain = copy.deepcopy(core)
    one = by_unroll(core, probe.inputs.float(), probe.reset, core.initial_state(ENVS))
    parameters = [p for p in core.parameters() if p.requires_grad]
    set_gradients(parameters, torch.autograd.grad(summed(one), parameters, allow_unused=True))
    for name, parameter in core.named_parameters():
        if (gradient := parameter.grad) is not None:
            fail_if(
                not same_layout(parameter, gradient),
                f"{name} has strides {parameter.stride()}, its gradient {gradient.stride()}: is it a slice?",
            )
            plain.get_parameter(name).grad = gradient.clone()
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-6}
    make_optimizer("adam", parameters, decay=0.0, momentum=0.0, **settings).step()
    torch.optim.Adam(plain.parameters(), fused=False, foreach=False, **settings).step()
    for name, parameter in plain.named_parameters():
        require_equal(core.get_parameter(name).detach(), parameter.detach(), f"{name} after a fused step", 1e-5)
    return "one step of Adam, fused and plain"
