"""Check of a run's memory against the machine's, before anything is built."""

from typing import Any

from ...actors.factory import ActorFactory
from ...agents.values import map_leaves
from ...base.errors import refuse
from ...base.memory import memory
from ...base.messages import size_in_words
from .run_config import RunConfig


def check_memory(config: RunConfig, factory: ActorFactory, batch: Any) -> int:
    """Bytes of the observations in an update and all actors' unrolls. Raises EngramError if they exceed the memory."""
    sizes: list[int] = []
    map_leaves(lambda x: sizes.append(x.nbytes) or x, batch.new_observation())
    actors = (config.fixed_actors or 1) if config.in_process or not config.ray_address else 1
    environments = config.columns + actors * factory.num_envs * config.num_members
    total, available = environments * sum(sizes) * (config.unroll_length + 1), memory()
    refuse(
        total > available.total,
        f"unrolls of {config.unroll_length} steps would take {size_in_words(total)}, in {environments:,} "
        f"environments of actors and updates; {available}",
    )
    return total
