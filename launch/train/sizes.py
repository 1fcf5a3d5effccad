"""Memory of a run's networks and unrolls, compared with the memory that there is before anything is built."""

import sys
from collections.abc import Callable
from typing import Any

import torch

from ...actors.factory import ActorFactory
from ...agents.agent import Agent
from ...agents.values import map_leaves
from ...base.messages import size_in_words
from ...base.processes import memory_bytes
from ..run.config import RunConfig

COPIES = 4
"""Of every parameter: itself, its gradient and two moments of the optimiser."""
LARGE_NETWORK = 10_000_000
"""Parameters from which a network's size is said before it is built."""
LARGEST = sys.maxsize
"""No array has more elements, whatever the machine."""


def check_counts(config: RunConfig) -> None:
    """Raise ValueError naming the setting if a count of environments or steps is larger than any array."""
    for name in ("envs_per_actor", "batch_size", "unroll_length", "num_actors", "population"):
        value = getattr(config, name)
        if isinstance(value, int) and value > LARGEST:
            raise ValueError(f"{name} is {value}; no machine holds that many, allowed: at most {LARGEST}")


def check_memory(
    config: RunConfig,
    factory: ActorFactory,
    batch: Any,
    available: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Raise ValueError with the bytes that a run would take if they are more than this machine has.

    Args:
        config: the run's configuration.
        factory: makes its networks.
        batch: its world, one environment.
        available: bytes; None for this machine's memory.
        say: hears the size of a large network.
    """
    available = available or memory_bytes()
    steps = _bytes(map_leaves, batch.new_observation()) * (config.unroll_length + 1)
    actors = (config.fixed_actors or 1) if config.in_process or not config.ray_address else 1
    needs = [
        ("the observations of an update", config.columns, "environments", steps),
        ("the unrolls of all actors", actors * factory.num_envs * config.num_members, "environments", steps),
    ]
    agent = _without_memory(factory, batch)
    if agent is not None:
        parameters = sum(p.numel() * p.element_size() for p in agent.parameters())
        needs.insert(0, ("networks and optimisers", config.num_members, "members", COPIES * parameters))
        if sizes := large_parts(agent):
            say(sizes)
    for what, count, of, each in needs:
        if count * each > available:
            raise ValueError(
                f"{what} would take {size_in_words(count * each)}, {size_in_words(each)} for each of {count:,} {of}; "
                f"this machine has {size_in_words(available)}"
            )


def large_parts(agent: Agent) -> str:
    """The parameters of a large network and of its parts in words; empty for a usual one."""
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in agent.named_children()}
    total = sum(parts.values())
    if total < LARGE_NETWORK:
        return ""
    text = ", ".join(f"{name} {count:,}" for name, count in sorted(parts.items(), key=lambda each: -each[1]) if count)
    advice = "; --torso atari or --embedding-size shrinks what the core sees" if parts["torso"] < total / 2 else ""
    return f"a large network: {total:,} parameters ({text}){advice}"


def _without_memory(factory: ActorFactory, batch: Any) -> Agent | None:
    """The network with shapes and no numbers; None for one that cannot be made so."""
    try:
        with torch.device("meta"):
            return factory.make_agent(batch)
    except Exception as problem:  # a core of one's own may do anything when it is made
        if "verflow" in str(problem):
            text = f"a network with core {factory.agent.core} {factory.agent.core_args} and embedding_size "
            text += f"{factory.agent.torso.embedding_size} has more parameters than any machine holds"
            raise ValueError(text) from problem
        return None  # what is wrong shows where it is made in earnest


def _bytes(map_leaves: Callable[..., Any], leaves: Any) -> int:
    sizes: list[int] = []
    map_leaves(lambda x: sizes.append(x.nbytes) or x, leaves)
    return sum(sizes)
