"""Cost and speed of a run, predicted from a few seconds of its own work in this process.

memory        learner + actors x actor + what they share + object store + Ray itself
object store  unrolls that are asked for and not learnt from + the versions of the weights that acted there
steps/s       the speed of light of the cores at hand (launch/metrics/speed.py), of which training reaches REACHED
disk          checkpoints kept, the best one, and one being written
"""

import pickle
import re
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...actors.actor import Actor
from ...actors.factory import ActorFactory
from ...actors.unroll import nbytes
from ...agents.values import flatten, map_leaves
from ...envs.foreign.check import Pace
from ..metrics.roofline import demands, roof
from ..metrics.speed import Parts, measure, open_parts, speed_of_light
from ..run.config import RunConfig
from ..run.sizes import RAY_BYTES

REACHED = (0.6, 0.95)
"""Fractions of the speed of light that training has reached (docs/explanation/speed.md)."""
CHECKPOINT_COPIES = 3
"""Times a checkpoint holds the size of the weights: weights and at most two moments."""


class Prediction(NamedTuple):
    """Cost of a run (bytes) and its speed (environment steps per second)."""

    parameters: int
    unroll: int
    """Bytes of one unroll of one actor."""
    object_store: int
    """Most that unrolls and weights under way occupy; 0 with --local."""
    learner: int
    """Memory of the learner."""
    memory: int
    """All processes and the object store, were they on one machine."""
    gpu_memory: int
    disk: int
    slowest: float
    fastest: float
    env_seconds: float
    """Of an environment step without the network."""
    flops: float
    """Floating-point operations per second of a large product on the learner's device; of a CPU on one core."""
    bandwidth: float
    """Bytes per second of a large copy there."""
    flops_per_step: float
    """Of the products of an environment step that is learnt from."""


class Still:
    """Environments of the spaces of `batch` that return zeros at once, for all measurements but those of environments.

    Args:
        batch: the environments, which are not stepped.
    """

    action_mask = None

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        """Write observations [N, ...] of zeros."""
        map_leaves(lambda x: x.fill(0), observation)

    def step_into(self, actions: Any, observation: Any, *others: Any) -> None:
        """Write zeros: observations [N, ...], rewards [N] and flags [N]."""
        map_leaves(lambda x: x.fill(0), observation)
        for each in others:
            each.fill(0)


class StillFactory(ActorFactory):
    """Makes actors whose environments stand still."""

    def make_batch(self, first_index: int = 0, num_envs: int | None = None, stage: int = -1) -> Any:
        """As ActorFactory's, standing still."""
        return Still(super().make_batch(first_index, num_envs, stage))


def predict(
    config: RunConfig,
    device: torch.device,
    actors: int,
    cores: int,
    seconds: float = 0.6,
    slow: Pace | None = None,
) -> Prediction:
    """Measure for about `seconds` per part of the work and multiply. Raises ValueError as making the agent does.

    Args:
        config: the run.
        device: the learner's.
        actors: actor processes.
        cores: cores that the actors, and a learner on the CPU, share.
        seconds: how long to time each part.
        slow: pace of an environment that is too slow to be stepped here.
    """
    factory = config.factory()
    if slow:
        factory = StillFactory(**{each.name: getattr(factory, each.name) for each in fields(factory)})
    with closing(factory.make_actor(0)) as actor:
        actor.unroll()
        unroll = nbytes(actor.unroll())
        acting, shared = own_memory()
        environments = actors * _saved(actor) if config.synchronous else 0
    one_learner = replace(config, num_actors=1, population=0, pbt=type(config.pbt)())
    with open_parts(one_learner, device, factory) as parts:
        costs = {name: cost.wall for name, cost in measure(parts, seconds, 2).items()}
    if slow:
        costs["env"] = slow.step / max(1, config.env_workers)
        cores = min(cores, actors)
    most = speed_of_light(Parts(**{name: costs[name] for name in Parts._fields}), cores, device.type != "cpu")
    learning, _ = own_memory()

    limits = roof(device, seconds)
    weights = flatten(actor.agent).nbytes
    store, memory = 0, learning + shared
    if not config.in_process:
        ahead = config.lag_bound + 1
        unrolls = actors if config.synchronous else -(-ahead * config.envs_per_update // config.actor_envs)
        store = config.num_members * (unrolls * unroll + (1 + ahead) * weights)
        memory = learning + actors * acting + shared + store + RAY_BYTES
    return Prediction(
        parameters=sum(p.numel() for p in actor.agent.parameters()),
        unroll=unroll,
        object_store=store,
        learner=learning,
        memory=memory,
        gpu_memory=torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0,
        disk=(config.keep_checkpoints + 2) * (CHECKPOINT_COPIES * weights * config.num_members + environments),
        slowest=REACHED[0] * most,
        fastest=REACHED[1] * most,
        env_seconds=costs["env"],
        flops=limits.flops,
        bandwidth=limits.bandwidth,
        flops_per_step=demands(config)["learn"].flops,
    )


def _saved(actor: Actor) -> int:
    """Bytes that an actor adds to a checkpoint; 0 if its environments cannot be saved."""
    try:
        return len(pickle.dumps(actor.save()))
    except ValueError:
        return 0


def own_memory() -> tuple[int, int]:
    """Bytes of this process that nobody else has, and those of its files (libraries), which others may share.

    Zeros where /proc has no answer.
    """
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+): +(\d+)", text, re.MULTILINE)}
    return sizes["Private_Dirty"], sizes["Rss"] - sizes["Private_Dirty"]
