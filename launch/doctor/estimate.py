"""Memory and disk of a run, for rl-doctor: the cost of one environment and one network, times their number."""

import pickle
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from ...actors.unroll import nbytes
from ...agents.values import flatten
from ...base.memory import own_memory
from ..run.config import RunConfig
from ..run.sizes import process_bytes

TRAINING_COPIES, CHECKPOINT_COPIES = 4, 3
"""Multiples of the weights: weights and at most two moments, and in training also gradients."""


class Estimate(NamedTuple):
    """Cost of a run in bytes."""

    parameters: int  # Parameters of the network (a count, not bytes)
    unroll: int  # One unroll of one actor
    object_store: int  # Maximum size of unrolls and weights in flight; 0 with --local
    learner: int  # Memory of the learner's process
    memory: int  # All processes and the object store together, on all machines
    disk: int  # Checkpoints


def estimate(config: RunConfig, work: int, actors: int) -> Estimate:
    """Estimate from a few steps of one environment. Raises ValueError like the creation of the agent.

    Args:
        work: bytes of its batches and unrolls (`check_memory`).
    """
    factory = config.factory()
    sizes: list[int] = []
    for length in (1, 2):
        with closing(replace(factory, num_envs=1, unroll_length=length).make_actor(0)) as actor:
            sizes.append(nbytes(actor.unroll()))
            weights, environment = flatten(actor.agent), _saved(actor)
    step = sizes[1] - sizes[0]
    unroll = config.actor_envs * (sizes[0] + (config.unroll_length - 1) * step)
    whole, _ = own_memory()
    work += TRAINING_COPIES * weights.nbytes * config.num_members
    store, processes = 0, 0
    if not config.in_process:
        ahead = config.lag_bound + 1
        unrolls = actors if config.synchronous else -(-ahead * config.columns // config.actor_envs)
        store = config.num_members * (unrolls * unroll + (1 + ahead) * weights.nbytes)
        processes = process_bytes(actors) - whole + actors * 2 * unroll
    states = actors * config.actor_envs * environment if config.synchronous else 0
    return Estimate(
        parameters=weights.size,
        unroll=unroll,
        object_store=store,
        learner=whole + work,
        memory=whole + work + processes + store,
        disk=(config.keep_checkpoints + 2) * (CHECKPOINT_COPIES * weights.nbytes * config.num_members + states),
    )


def _saved(actor: Any) -> int:
    """Bytes that an actor adds to a checkpoint; 0 if its environments cannot be saved."""
    try:
        return len(pickle.dumps(actor.save()))
    except ValueError:
        return 0
