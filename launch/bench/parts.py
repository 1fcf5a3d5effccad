"""Speed of one CPU core: the parts of training, each timed separately.

    env      step_into of a batch of environments, random actions
    infer    Agent.step on steps of real unrolls, with the recurrent state
    learn    Learner.step on real batches

Training cannot be faster than cores / (t_env + t_infer + t_learn): the ideal speed of a machine for one network.
Times are per environment step, as in the rest of engram: steps with an ignored action, between two episodes, take
time but do not count.
"""

import itertools
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from ...actors.actor import Actor
from ...actors.factory import ActorFactory, action_spec
from ...actors.unroll import Unroll
from ...agents.specs import BoxSpec
from ...agents.values import map_leaves
from ...envs.masks import random_valid
from ...learners.batches import Batcher
from ...learners.learner import Learner
from ..config.run_config import RunConfig

UNROLLS = 6  # Number of unrolls on which the parts are measured
EARLIER_UNROLLS = 4  # Number of earlier unrolls, after which the environments are out of phase

Work = Callable[[], float]  # Does some work of a part; returns its environment steps


class Parts(NamedTuple):
    """Seconds per environment step on one core (`learn`: on the learner's device)."""

    env: float
    infer: float
    learn: float


def speed_of_light(parts: Parts, cores: int, learner_has_device: bool) -> float:
    """Maximum number of environment steps per second that `cores` cores can learn from.

    cores / (t_env + t_infer + t_learn)                   the learner shares the cores
    min(cores / (t_env + t_infer), 1 / t_learn)           the learner has a separate device
    """
    acting = parts.env + parts.infer
    return min(cores / acting, 1 / parts.learn) if learner_has_device else cores / (acting + parts.learn)


@contextmanager
def open_parts(config: RunConfig, device: torch.device) -> Generator[dict[str, Work]]:
    """Yield the work of each field of Parts, with the networks and batch sizes of `config`; close the environments."""
    factory = config.factory()
    torch.manual_seed(config.seed)
    with closing(factory.make_actor(0)) as actor:
        for _ in range(EARLIER_UNROLLS):
            actor.unroll()
        unrolls = [actor.unroll() for _ in range(UNROLLS)]
        over = torch.cat([(unroll.env.terminated | unroll.env.truncated)[:-1] for unroll in unrolls])
        worth = 1.0 - float(over.float().mean())
        learn = _learn_work(config, actor, unrolls, device)
        # last: it resets the actor's environments, which may be the only ones
        env = _env_work(factory, actor.batch, worth)
        yield {"env": env, "infer": _infer_work(actor, unrolls, worth), "learn": learn}


def measure(work: dict[str, Work], seconds: float, slices: int) -> dict[str, float]:
    """Measure the seconds per environment step of each kind of work, in `slices` turns of `seconds / slices` each. In
    turns, other load slows all kinds equally. The first call of each is not counted."""
    for do in work.values():
        do()
    wall, steps = dict.fromkeys(work, 0.0), dict.fromkeys(work, 0.0)
    for _ in range(slices):
        for name, do in work.items():
            started = time.perf_counter()
            while time.perf_counter() - started < seconds / slices:
                steps[name] += do()
            wall[name] += time.perf_counter() - started
    return {name: wall[name] / steps[name] for name in work}


def _env_work(factory: ActorFactory, batch: Any, worth: float) -> Work:
    n = batch.num_envs
    rng = np.random.default_rng(factory.seed)
    spec = action_spec(batch.single_action_space)
    if isinstance(spec, BoxSpec):
        actions = rng.uniform(-1, 1, (factory.unroll_length, n, spec.size)).astype(np.float32)
    else:
        choices = [rng.integers(k, size=(factory.unroll_length, n)) for k in spec.choices]
        actions = np.stack(choices, -1) if spec.shape else choices[0]
    observation, reward = batch.new_observation(), np.zeros(n, np.float32)
    terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(observation, factory.seed)

    def do() -> float:
        for row in actions:
            if batch.action_mask is not None and not isinstance(spec, BoxSpec):
                ended = (terminated | truncated)[:, None]
                row = random_valid(batch.action_mask | ended, spec.choices, rng)
            batch.step_into(row, observation, reward, terminated, truncated)
        return worth * len(actions) * n

    return do


def _infer_work(actor: Actor, unrolls: list[Unroll], worth: float) -> Work:
    agent, generator = actor.agent, actor.generator
    steps = range(actor.unroll_length)
    rows = [[map_leaves(lambda x, t=t: x[t], unroll.env) for t in steps] for unroll in unrolls]
    turns = itertools.cycle(range(len(unrolls)))

    def do() -> float:
        turn = next(turns)
        state = unrolls[turn].initial_state
        agent.begin_unroll(len(rows[turn]))
        for row in rows[turn]:
            _, state = agent.step(row, state, generator)
        agent.end_unroll()
        return worth * len(rows[turn]) * actor.batch.num_envs

    return do


def _learn_work(config: RunConfig, actor: Actor, unrolls: list[Unroll], device: torch.device) -> Work:
    learner = Learner(config.factory().make_agent(actor.batch).to(device), config.learner, config.total_steps)
    batcher = Batcher(config.columns)
    sources = iter(unrolls)
    first = batcher.next(lambda: next(sources, None) or actor.unroll())
    assert first is not None, "this actor always returns an unroll"
    batches = [first]
    for unroll in sources:
        batcher.add(unroll)
    while (batch := batcher.take()) is not None:
        batches.append(batch)
    turns = itertools.cycle(batches)

    def do() -> float:
        before = learner.steps
        learner.step(next(turns))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return float(learner.steps - before)

    return do
