"""Throughput with more and more actors, and what the plumbing costs per unroll.

    python benchmarks/actors_scaling.py [--actors 1 2 4 8 16] [--plumbing 1 10 100] [--seconds 20]

Two tables, printed and written to benchmarks/results/actors_scaling.json.

Throughput: `rl-train`'s own pool and learner, BoxWorld with an LSTM, for as many actors as the machine has cores for.

Plumbing: actors that answer at once with an unroll made beforehand, of the paper's size (40 steps of 32 environments).
What is left is the cost of asking, answering, fetching and joining: milliseconds and bytes per unroll, measured at the
learner, processor time of the learner's process and wall time. It is set beside the time of the update that such an
unroll feeds, with the paper's network; at the paper's 100 actors it should be at most a tenth of that. Instant actors
need no core of their own, so their number may exceed the machine's.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import ray
import torch

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.actors.ray_pool import RayPool
from engram.actors.unroll import Unroll, nbytes
from engram.agents.agent import AgentConfig
from engram.agents.process import prepare_process
from engram.agents.weights import Weights, flatten
from engram.launch.machine import num_cores, provenance
from engram.launch.ray_session import start_ray
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

RESULTS = Path(__file__).parent / "results"
FACTORY = ActorFactory(
    env="boxworld", agent=AgentConfig(core="lstm"), num_envs=32, unroll_length=40, seed=1
)  # the paper's batch: 32 unrolls of 40 steps


class Instant:
    """An actor that acts once and then gives the same unroll again and again, with what changes between them."""

    def __init__(self, actor: Actor) -> None:
        self._unroll = actor.unroll()

    def unroll(self, weights: Weights) -> Unroll:
        """The unroll, as of these weights."""
        return self._unroll._replace(weights_version=torch.full_like(self._unroll.weights_version, weights.version))


def instant(number: int, member: int, life: int) -> Any:
    """See MakeActor."""
    return Instant(FACTORY.make_actor(number, member, life))


def newest(learner: Learner) -> Weights:
    """The learner's weights, for the actors."""
    return Weights(learner.updates, 0, flatten(learner.agent))


def take(pool: RayPool) -> Unroll:
    """The next unroll, however long it takes."""
    while (unroll := pool.next()) is None:
        pass
    return unroll


def new_learner() -> Learner:
    """With the network that acts."""
    return Learner(FACTORY.make_agent(FACTORY.make_batch()), LearnerConfig(), total_steps=1_000_000_000)


def throughput(num_actors: int, seconds: float) -> dict[str, float]:
    """Environment steps per second that are learnt from, and where the learner's time goes."""
    learner, pool = new_learner(), RayPool(FACTORY.make_actor, num_actors, 0, niceness=0)
    pool.publish(newest(learner))
    for _ in range(3 * num_actors):  # all have started and every kernel has run
        learner.step(take(pool))
        pool.publish(newest(learner))
    begun, steps, waited = time.perf_counter(), learner.steps, 0.0
    while (wall := time.perf_counter() - begun) < seconds:
        asked = time.perf_counter()
        unroll = take(pool)
        waited += time.perf_counter() - asked
        learner.step(unroll)
        pool.publish(newest(learner))
    pool.close()
    return {
        "actors": num_actors,
        "steps_per_second": round((learner.steps - steps) / wall),
        "learner_waits": round(waited / wall, 3),
    }


def plumbing(num_actors: int, seconds: float, update_ms: float) -> dict[str, float]:
    """Cost per unroll of everything but acting and learning."""
    learner = new_learner()
    pool = RayPool(instant, num_actors, 0, niceness=0, cpus_per_actor=0)
    weights = newest(learner)
    pool.publish(weights)
    for _ in range(3 * num_actors):
        unroll = take(pool)
    size, count = nbytes(unroll), 0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        take(pool)
        weights = weights._replace(version=weights.version + 1)
        pool.publish(weights)  # as after an update: a new version for every unroll
        count += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    pool.close()
    return {
        "actors": num_actors,
        "ms_per_unroll": round(1000 * wall / count, 3),
        "learner_cpu_ms_per_unroll": round(1000 * cpu / count, 3),
        "share_of_update": round(1000 * cpu / count / update_ms, 4),
        "bytes_per_unroll": size,
        "weights_bytes": weights.values.nbytes,
    }


def update_milliseconds() -> float:
    """One update of 32 unrolls of 40 steps on this machine, one thread."""
    learner = new_learner()
    batch = FACTORY.make_actor(0).unroll()
    best = float("inf")
    for _ in range(8):
        began = time.process_time()
        learner.step(batch)
        best = min(best, time.process_time() - began)
    return 1000 * best


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    cores = num_cores()
    fitting = [n for n in (1, 2, 4, 8, 16) if n <= max(cores, 2)]
    parser.add_argument("--actors", type=int, nargs="*", default=fitting)
    parser.add_argument("--plumbing", type=int, nargs="*", default=[1, 2, 10, 30, 100])
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    prepare_process(1)
    update_ms = update_milliseconds()
    start_ray(max(arguments.actors, default=1))
    result: dict[str, Any] = provenance() | {"update_ms": round(update_ms, 1), "throughput": [], "plumbing": []}
    for number in arguments.actors:
        result["throughput"].append(throughput(number, arguments.seconds))
        print(result["throughput"][-1], flush=True)
    for number in arguments.plumbing:
        result["plumbing"].append(plumbing(number, arguments.seconds, update_ms))
        print(result["plumbing"][-1], flush=True)
    ray.shutdown()
    (RESULTS / "actors_scaling.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
