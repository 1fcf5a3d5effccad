"""Memory of a run's networks and unrolls, compared with the memory that there is before anything is built."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ...actors.factory import ActorFactory
from ...agents.agent import Agent
from ...agents.values import map_leaves
from ...base.memory import Memory, memory, own_memory
from ...base.messages import size_in_words
from .config import RunConfig
from .device import find_device

COPIES = 4
"""Of every parameter: itself, its gradient and two moments of the optimizer."""
Network = TypeVar("Network", bound=nn.Module)
FLOAT = 4
"""Bytes of a number in a network."""
LARGE_NETWORK = 10_000_000
"""Parameters from which a network's size is said before it is built."""
LARGEST = sys.maxsize
"""No array has more elements, whatever the machine."""
RAY_BYTES = 400 * 2**20
"""Ray's own processes on one machine."""
MOST_IN_PROCESS = 1000
"""Actors in one process, each with a network of its own; making them takes seconds, and more are no faster."""


def check_counts(config: RunConfig) -> None:
    """Raise ValueError naming the setting if a count is larger than any array, or there are too many actors here."""
    for name in ("envs_per_actor", "envs_per_update", "unroll_length", "num_actors", "population", "eval_episodes"):
        value = getattr(config, name)
        if isinstance(value, int) and value > LARGEST:
            raise ValueError(f"{name} is {value}; no machine holds that many, allowed: at most {LARGEST}")
    if config.in_process and (config.fixed_actors or 0) > MOST_IN_PROCESS:
        raise ValueError(
            f"num_actors is {config.num_actors}; allowed with --local and --act-on: at most {MOST_IN_PROCESS}, "
            "each with as many environments as --envs-per-actor says"
        )


def check_memory(
    config: RunConfig,
    factory: ActorFactory,
    batch: Any,
    available: Memory | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Bytes of a run's networks and batches. Raises ValueError if they are more than this process may use.

    Args:
        config: the run's configuration.
        factory: makes its networks.
        batch: its environment, one environment.
        available: None for this process's limit.
        say: hears the size of a large network.
    """
    available = available or memory()
    steps = _bytes(map_leaves, batch.new_observation()) * (config.unroll_length + 1)
    actors = (config.fixed_actors or 1) if config.in_process or not config.ray_address else 1
    unrolls = actors * factory.num_envs * config.num_members
    together = config.columns * steps + unrolls * steps
    chosen = factory.agent
    what = f"a network with core {chosen.core} {chosen.core_args} and embedding_size {chosen.torso.embedding_size}"
    agent = without_memory(lambda: factory.make_agent(batch), what)
    if agent is not None:
        if sizes := large_parts(agent):
            say(sizes)
        check_fits("networks and optimizers", config.num_members, "members", training_bytes(agent), available)
        together += config.num_members * training_bytes(agent)
    check_fits("the observations of an update", config.columns, "environments", steps, available)
    check_fits("the unrolls of all actors", unrolls, "environments", steps, available)
    if agent is not None and find_device(config.device).type == "cpu":
        at_once = -(-config.columns // config.learner.algorithm_args.get("minibatches", 1))
        size = int(agent.torso.output_size)  # pyright: ignore[reportArgumentType]
        features = FLOAT * size * (config.unroll_length + 1)
        check_fits("what the core reads in an update", at_once, "environments", features, available)
        together += at_once * features
    check_fits("networks, observations and what the core reads", 1, "runs", together, available)
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
    """The network that `make` returns, with shapes and no numbers; None for one that cannot be made so.

    Raises ValueError naming `what` if it has more parameters than any machine holds.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception as problem:  # a core of one's own may do anything when it is made
        if "verflow" in str(problem):
            raise ValueError(f"{what} has more parameters than any machine holds") from problem
        return None  # what is wrong shows where it is made in earnest


def training_bytes(network: nn.Module) -> int:
    """Bytes of a network in training, its optimizer included."""
    return COPIES * sum(p.numel() * p.element_size() for p in network.parameters())


def check_fits(what: str, count: int, of: str, each: int, available: Memory) -> None:
    """Raise ValueError with the bytes that `count` times `each` takes if they are more than the limit."""
    if count * each > available.total:
        raise ValueError(
            f"{what} would take {size_in_words(count * each)}, {size_in_words(each)} for each of {count:,} {of}; "
            f"{available}"
        )


def process_bytes(actors: int) -> int:
    """Bytes of the learner's process, Ray and so many actor processes, before they do anything; 0 actors: no Ray."""
    whole, own = own_memory()
    return whole + (actors * own + RAY_BYTES if actors else 0)


def large_parts(agent: Agent) -> str:
    """The parameters of a large network and of its parts in words; empty for a usual one."""
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in agent.named_children()}
    total = sum(parts.values())
    if total < LARGE_NETWORK:
        return ""
    text = ", ".join(f"{name} {count:,}" for name, count in sorted(parts.items(), key=lambda each: -each[1]) if count)
    advice = "; --torso atari or --embedding-size shrinks what the core sees" if parts["torso"] < total / 2 else ""
    return f"a large network: {total:,} parameters ({text}){advice}"


def _bytes(map_leaves: Callable[..., Any], leaves: Any) -> int:
    sizes: list[int] = []
    map_leaves(lambda x: sizes.append(x.nbytes) or x, leaves)
    return sum(sizes)
