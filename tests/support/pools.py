"""Parts that both pools' tests share: actors in real environments, and some that break on purpose."""

import math
import os
import sys
import time
from functools import partial
from typing import Any

import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.pool import ActorPool
from engram.actors.remote.slot import RequestWindow
from engram.actors.unroll import Unroll
from engram.agents.config import AgentConfig
from engram.agents.values import Weights, flatten
from engram.learners.batches import Batcher

FACTORY = ActorFactory(
    env="boxworld",
    env_args={"path_lengths": 1, "num_distractors": 0},
    agent=AgentConfig(core="lstm", core_args={"hidden_size": 8}),
    num_envs=4,
    unroll_length=5,
    seed=3,
)


class Broken:
    """A batch of environments that goes wrong after some steps."""

    def __init__(self, batch: Any, steps: int, how: str) -> None:
        self._batch, self._left, self._how = batch, steps, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step_into(self, *arrays: Any) -> None:
        self._left -= 1
        if self._left == -1 or (self._left < 0 and self._how != "once"):
            if self._how == "hang":
                time.sleep(60)
            if self._how == "exit":
                os._exit(1)
            if self._how == "sys.exit":
                sys.exit(0)
            raise RuntimeError("the floor gave way")
        self._batch.step_into(*arrays)


def breaking(which: int, steps: int, how: str, always: bool, number: int, member: int, life: int) -> Actor:
    """Actor `which` breaks after some steps: only its first life, or every one."""
    actor = FACTORY.make_actor(number, member, life)
    if number == which and (always or life == 0):
        actor.batch = Broken(actor.batch, steps, how)
    return actor


def open_window(unrolls: int = 1, requests: int = 2) -> RequestWindow:
    """So many requests per actor, of `unrolls` each, whatever is learned."""
    window = RequestWindow(10**6, 1, FACTORY.num_envs, 10**6)
    window.unrolls, window.requests_per_slot = unrolls, requests
    return window


def make_breaking(which: int, steps: int, how: str = "raise", always: bool = False) -> Any:
    return partial(breaking, which, steps, how, always)


def weights(version: int, member: int = 0) -> Weights:
    torch.manual_seed(version)
    return Weights(version, member, flatten(FACTORY.make_agent(FACTORY.make_batch())))


def take(pool: ActorPool, seconds: float = 600.0) -> Unroll:
    """The next unroll, even if it takes a while; TimeoutError if it does not come."""
    deadline = time.monotonic() + seconds
    while (unroll := pool.next()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no unroll came in {seconds:g} s")
    return unroll


def least_max_lag(batch_size: int, num_envs: int) -> int:
    """The smallest possible bound on policy lag with this number of environments per actor."""
    return -(-(num_envs - math.gcd(num_envs, batch_size)) // batch_size)


def lags(pool: ActorPool, batch_size: int, members: int, updates: int) -> list[int]:
    """How old the weights of each environment were when it was learned from, in so many updates of each member."""
    batchers, versions = [Batcher(batch_size) for _ in range(members)], [0] * members
    first = [weights(0)._replace(member=member) for member in range(members)]
    for each in first:
        pool.publish(each)
    found: list[int] = []
    while min(versions) < updates:
        unroll = take(pool)
        member = unroll.member
        batchers[member].add(unroll)
        while (batch := batchers[member].take()) is not None:
            found += (versions[member] - batch.weights_version).tolist()
            versions[member] += 1
            pool.publish(first[member]._replace(version=versions[member]), batch_size)
    return found


def gather(pool: ActorPool) -> list[Unroll]:
    """One unroll of every actor, however long it takes."""
    while (unrolls := pool.gather()) is None:
        pass
    return unrolls


class Telling(Actor):
    """An actor whose state tells what an environment variable is where it acts."""

    name = ""

    def save(self) -> dict[str, Any]:
        return super().save() | {"told": os.environ.get(self.name)}


def telling(name: str, number: int, member: int, life: int) -> Actor:
    """An actor of class Telling."""
    actor = FACTORY.make_actor(number, member, life)
    actor.__class__, actor.name = Telling, name  # type: ignore[attr-defined]
    return actor
