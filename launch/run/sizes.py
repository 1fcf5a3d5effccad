"""Memory of a run's networks and unrolls, compared with the machine's before anything is built."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ...actors.factory import ActorFactory
from ...agents.agent import Agent
from ...agents.values import map_leaves
from ...base.errors import EngramError
from ...base.memory import Memory, memory, own_memory
from ...base.messages import size_in_words
from .config import RunConfig
from .device import find_device

COPIES = 4
"""Values stored per parameter: the parameter, its gradient and two moments of the optimizer."""
Network = TypeVar("Network", bound=nn.Module)
FLOAT = 4
"""Bytes of a float in a network."""
LARGE_NETWORK = 10_000_000
"""Parameters from which a network's size is printed before it is built."""
RAY_BYTES = 400 * 2**20
"""Bytes of Ray's own processes on one machine."""


def check_memory(
    config: RunConfig,
    factory: ActorFactory,
    batch: Any,
    available: Memory | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Bytes of a run's networks and batches. Raises EngramError if they exceed this process's limit.

    Args:
        available: None for this process's limit.
        say: called with the size of a large network, and with a warning if memory may run out.
    """
    available = available or memory()
    sizes: list[int] = []
    map_leaves(lambda x: sizes.append(x.nbytes) or x, batch.new_observation())
    steps = sum(sizes) * (config.unroll_length + 1)
    actors = (config.fixed_actors or 1) if config.in_process or not config.ray_address else 1
    parts = [
        ("the observations of an update", config.columns, "environments", steps),
        ("the unrolls of all actors", actors * factory.num_envs * config.num_members, "environments", steps),
    ]
    chosen = factory.agent
    what = f"a network with core {chosen.core} {chosen.core_args} and embedding_size {chosen.torso.embedding_size}"
    agent = without_memory(lambda: factory.make_agent(batch), what)
    if agent is not None:
        if text := large_parts(agent):
            say(text)
        parts.insert(0, ("networks and optimizers", config.num_members, "members", training_bytes(agent)))
        if find_device(config.device, config.num_learners).type == "cpu":
            at_once = -(-config.columns // config.learner.algorithm_args.get("minibatches", 1))
            features = FLOAT * int(agent.torso.output_size) * (config.unroll_length + 1)  # pyright: ignore
            parts.append(("the core's inputs in an update", at_once, "environments", features))
    for part in parts:
        check_fits(*part, available)
    together = sum(count * each for _, count, _, each in parts)
    check_fits("networks, observations and core inputs", 1, "runs", together, available)
    processes = (config.fixed_actors or 1) + config.num_learners - 1
    needed = together + process_bytes(0 if config.in_process or config.ray_address else processes)
    if needed > available.total:
        say(
            f"memory may run out, and the system then kills a process: this run takes about {size_in_words(needed)}, "
            f"{available}; --local, fewer --num-actors and a smaller --envs-per-actor, --envs-per-update or "
            "--unroll-length take less"
        )
    return together


def without_memory(make: Callable[[], Network], what: str) -> Network | None:
    """The network of `make` with shapes and no values; None if it cannot be built without values.

    Raises EngramError naming `what` if it has more parameters than fit on any machine.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception as problem:  # the constructor of a custom core may raise anything
        if "verflow" in str(problem):
            raise EngramError(f"{what} is too large for any machine") from problem
        return None  # the error appears when the core is built with values


def training_bytes(network: nn.Module) -> int:
    """Bytes of a network in training, its optimizer included."""
    return COPIES * sum(p.numel() * p.element_size() for p in network.parameters())


def check_fits(what: str, count: int, of: str, each: int, available: Memory) -> None:
    """Raise EngramError with the bytes that `count` times `each` takes if they exceed the limit."""
    if count * each > available.total:
        total, one = size_in_words(count * each), size_in_words(each)
        raise EngramError(f"{what} would take {total}, {one} for each of {count:,} {of}; {available}")


def process_bytes(actors: int) -> int:
    """Bytes of the idle processes of the learner, Ray and the actors; without Ray for 0 actors."""
    whole, own = own_memory()
    return whole + (actors * own + RAY_BYTES if actors else 0)


def large_parts(agent: Agent) -> str:
    """Text on the parameters of a large network and its parts; empty for a network of usual size."""
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in agent.named_children()}
    total = sum(parts.values())
    if total < LARGE_NETWORK:
        return ""
    text = ", ".join(f"{name} {count:,}" for name, count in sorted(parts.items(), key=lambda each: -each[1]) if count)
    advice = "; --torso atari or --embedding-size reduces the core's input" if parts["torso"] < total / 2 else ""
    return f"a large network: {total:,} parameters ({text}){advice}"
