"""Speed of one CPU core: the parts of training, each timed separately.

    env      step_into of a batch of environments, actions of real unrolls
    infer    Agent.step on steps of real unrolls, with the recurrent state
    learn    Learner.step on real batches

Training cannot be faster than cores / (t_env + t_infer + t_learn): the ideal speed of a machine for one network.
Times are per environment step, as in the rest of engram: steps with an ignored action, between two episodes, take
time but do not count.
"""

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch

from ...actors.actor import Actor
from ...actors.unroll import Unroll
from ...agents.values import map_leaves
from ...envs.masks import random_valid
from ...learners.batches import Batcher
from ...learners.learner import Learner
from ..config.run_config import RunConfig

UNROLLS = 6  # Number of unrolls on which the parts are measured
EARLIER_UNROLLS = 4  # Number of earlier unrolls, after which the environments are out of phase

Work = Callable[[], float]  # Does some work of a part; returns its environment steps


def speed_of_light(env: float, infer: float, learn: float, cores: int, learner_has_device: bool) -> float:
    """Maximum number of environment steps per second that `cores` cores can learn from, by the seconds of each part.

    cores / (t_env + t_infer + t_learn)                   the learner shares the cores
    min(cores / (t_env + t_infer), 1 / t_learn)           the learner has a separate device
    """
    return min(cores / (env + infer), 1 / learn) if learner_has_device else cores / (env + infer + learn)


@contextmanager
def open_parts(config: RunConfig, device: torch.device) -> Generator[dict[str, Work]]:
    """Yield the work of each part, with the networks and batch sizes of `config`; close the environments."""
    torch.manual_seed(config.seed)
    with closing(config.factory().make_actor(0)) as actor:
        for _ in range(EARLIER_UNROLLS):
            actor.unroll()
        unrolls = [actor.unroll() for _ in range(UNROLLS)]
        over = torch.cat([(unroll.env.terminated | unroll.env.truncated)[:-1] for unroll in unrolls])
        steps = (1.0 - float(over.float().mean())) * actor.unroll_length * actor.batch.num_envs
        learner = Learner(config.factory().make_agent(actor.batch).to(device), config.learner, config.total_steps)
        batcher = Batcher(config.columns)
        for unroll in unrolls:
            batcher.add(unroll)
        batches: list[Any] = [batcher.next(actor.unroll)]
        while (batch := batcher.take()) is not None:
            batches.append(batch)
        work = {
            "env": _step_environments(actor, unrolls, steps),
            "infer": _infer(actor, unrolls, steps),
            "learn": _learn(learner, batches, device),
        }
        yield {name: part.__next__ for name, part in work.items()}


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


def _step_environments(actor: Actor, unrolls: Sequence[Unroll], steps: float) -> Iterator[float]:
    batch: Any = actor.batch
    spec: Any = actor.agent.action_spec
    rng, n = np.random.default_rng(0), batch.num_envs
    observation, reward = batch.new_observation(), np.zeros(n, np.float32)
    terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(observation, 0)
    for unroll in itertools.cycle(unrolls):
        for actions in unroll.agent.action.numpy():
            if batch.action_mask is not None:
                actions = random_valid(batch.action_mask | (terminated | truncated)[:, None], spec.choices, rng)
            batch.step_into(actions, observation, reward, terminated, truncated)
        yield steps


def _infer(actor: Actor, unrolls: Sequence[Unroll], steps: float) -> Iterator[float]:
    length = actor.unroll_length
    rows = [[map_leaves(lambda x, t=t: x[t], unroll.env) for t in range(length)] for unroll in unrolls]
    for unroll, outputs in itertools.cycle(zip(unrolls, rows, strict=True)):
        state = unroll.initial_state
        actor.agent.begin_unroll(length)
        for output in outputs:
            _, state = actor.agent.step(output, state, actor.generator)
        actor.agent.end_unroll()
        yield steps


def _learn(learner: Learner, batches: Sequence[Unroll], device: torch.device) -> Iterator[float]:
    for batch in itertools.cycle(batches):
        before = learner.steps
        learner.step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield float(learner.steps - before)
