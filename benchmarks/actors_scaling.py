"""Throughput with an increasing number of actors, and the communication cost per unroll.

    python benchmarks/actors_scaling.py [--actors 1 2 4] [--plumbing 1 3 10 30 100] [--envs 1 32] [--seconds 20]

Two tables, printed and written to benchmarks/results/actors_scaling.json after every row.

Throughput: the real command, `rl-train --env boxworld --core rmc`, with the given number of actors.

Plumbing: actors that return a prepared unroll of 40 steps at once, so that neither environment nor policy takes time.
The learner updates the RMC paper's network with its batch (32 x 40). After each update the unrolls of the next one are
ready. Timed is everything except learning: requesting and fetching unrolls, joining them into a batch, reading the new
weights from the network and storing them for the actors. `share_of_update` is this time divided by that of an update
alone (`update_ms`, measured before any actors exist); `cpu_share_of_update` is the same in CPU time of the learner's
process, since on few cores a hundred actors also use the learner's core, unlike on a cluster. With the paper's 100
actors it should be at most 0.1. With --envs 1 an update takes 32 unrolls, as in the paper; with --envs 32 it takes one.
Actors have the priority of a real run, and each request is for as many unrolls as the request window sets
(`unrolls_per_request`). `rate_...` is the cost without updates, at full speed: the maximum rate at which one learner
could be supplied, with all actors on this machine's cores.

Instant actors claim no core, so there may be more of them than cores. `left_out` counts actors for which there was no
memory.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from engram.actors.factory import ActorFactory
from engram.actors.packed import nbytes
from engram.actors.remote import pool as pool_module
from engram.actors.remote.pool import RayPool
from engram.actors.remote.slot import RequestWindow
from engram.actors.unroll import Unroll
from engram.agents.process import prepare_process
from engram.agents.values import Weights, flatten
from engram.base.processes import num_cores
from engram.launch.bench.command import training_speed
from engram.launch.cluster.ray_session import start_ray
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import preset
from engram.launch.metrics.provenance import provenance
from engram.launch.train.acting import ACTOR_NICENESS
from engram.learners.batches import Batcher
from engram.learners.learner import Learner
from process_tree import tree_memory

RESULTS = Path(__file__).parent / "results"
PAPER: RunConfig = preset("paper", "boxworld", "rmc")
RESERVE_BYTES = 2 << 30
"""Bytes of memory reserved for everything else."""


class Instant:
    """An actor that returns the same unroll repeatedly, with updated counters."""

    def __init__(self, unroll: Unroll) -> None:
        self._unroll = unroll

    def unroll(self, weights: Weights | None = None) -> Unroll:
        """Return the unroll, labeled with the version of these weights or the last ones."""
        if weights is not None:
            versions = torch.full_like(self._unroll.weights_version, weights.version)
            self._unroll = self._unroll._replace(weights_version=versions)
        return self._unroll


def factory(num_envs: int) -> ActorFactory:
    """Return a factory of actors with the paper's network and `num_envs` environments each."""
    return ActorFactory(
        env=PAPER.env, agent=PAPER.agent, num_envs=num_envs, unroll_length=PAPER.unroll_length, seed=PAPER.seed
    )


class InstantFactory:
    def __init__(self, num_envs: int) -> None:
        # Made here, so that a hundred processes need neither environment nor network.
        self._unroll = factory(num_envs).make_actor(0).unroll()

    def __call__(self, number: int, member: int, life: int) -> Any:
        return Instant(self._unroll._replace(actor=number))


def new_learner() -> Learner:
    """Return a learner with the paper's settings."""
    agent = factory(1).make_agent(factory(1).make_batch())
    return Learner(agent, PAPER.learner, PAPER.total_steps)


def take(pool: RayPool) -> Unroll:
    """Wait for the next unroll, without a time limit."""
    while (unroll := pool.next()) is None:
        pass
    return unroll


class Feed:
    """A pool of instant actors and their learner."""

    def __init__(self, num_actors: int, num_envs: int) -> None:
        self.learner, self.batcher = new_learner(), Batcher(PAPER.envs_per_update)
        self.window = RequestWindow(PAPER.envs_per_update, 1, num_envs, num_actors)
        self.pool = RayPool(
            InstantFactory(num_envs),
            num_actors,
            0,
            cpus_per_actor=0,
            niceness=ACTOR_NICENESS,
            window=self.window,
        )
        self.publish()
        started: set[int] = set()
        while len(started) < num_actors:
            self.unroll = take(self.pool)
            self.publish()
            started.add(self.unroll.actor)

    def publish(self) -> Weights:
        """Publish the learner's weights to the actors, as a new version."""
        weights = Weights(self.learner.updates, 0, flatten(self.learner.agent))
        self.pool.publish(weights, PAPER.envs_per_update)
        return weights

    def batch(self) -> Unroll:
        """Wait for the next batch."""
        batch = self.batcher.next(lambda: take(self.pool))
        assert batch is not None, "take() waits for an unroll"
        return batch


def throughput(num_actors: int, seconds: float) -> dict[str, float]:
    """Measure the speed of `rl-train` with `num_actors` actors."""
    arguments = ["--env", "boxworld", "--core", "rmc", "--num-actors", str(num_actors), "--log-every", "1000"]
    speed = training_speed(arguments, seconds, warm_up=max(5.0, seconds / 4))
    row = {"actors": num_actors, "steps_per_second": round(speed.steps_per_second)}
    names = ("learner_busy", "queue_wait", "actor_busy")
    return row | {name: round(speed.metrics[f"perf/{name}"], 3) for name in names if f"perf/{name}" in speed.metrics}


def plumbing(num_actors: int, num_envs: int, seconds: float, update_ms: float) -> dict[str, float]:
    """Measure everything but acting and learning, relative to updates that take `update_ms` alone."""
    feed = Feed(num_actors, num_envs)
    per_update = PAPER.envs_per_update / num_envs
    idle = idle_rate(feed, seconds / 3) / per_update
    updates: list[float] = []
    moves: list[float] = []
    cpu: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(updates) < 5:
        began, cpu_began = time.perf_counter(), time.process_time()
        batch = feed.batch()
        fetched, cpu_fetched = time.perf_counter(), time.process_time()
        feed.learner.step(batch)
        learned, cpu_learned = time.perf_counter(), time.process_time()
        weights = feed.publish()
        moves.append(fetched - began + time.perf_counter() - learned)
        cpu.append(cpu_fetched - cpu_began + time.process_time() - cpu_learned)
        updates.append(learned - fetched)
    memory, sizes = tree_memory(psutil.Process().pid), actor_sizes()
    feed.pool.close()
    while actor_sizes():
        time.sleep(0.5)  # until their memory is free for the next actors
    moved = 1000 * statistics.mean(moves)
    return {
        "actors": num_actors,
        "envs_per_actor": num_envs,
        "unrolls_per_request": feed.window.unrolls,
        "bytes_per_unroll": nbytes(feed.unroll) // feed.window.unrolls,
        "weights_bytes": weights.values.nbytes,
        "ms_per_unroll": round(moved / per_update, 3),
        "learner_cpu_ms_per_unroll": round(1000 * statistics.mean(cpu) / per_update, 3),
        "ms_per_update": round(moved, 2),
        "update_beside_actors_ms": round(1000 * statistics.mean(updates), 1),
        "updates": len(updates),
        "share_of_update": round(moved / update_ms, 4),
        "cpu_share_of_update": round(1000 * statistics.mean(cpu) / update_ms, 4),
        "rate_ms_per_unroll": round(idle, 3),
        "actor_mb": round(statistics.mean(sizes) / 1e6),
        "tree_mb": round(memory / 1e6),
    }


def actor_sizes() -> list[int]:
    """Bytes of each actor's process; shared pages count in part."""
    sizes: list[int] = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "ray::ActorProcess" in " ".join(child.cmdline()):
                sizes.append(child.memory_full_info().pss)
        except psutil.Error:
            continue
    return sizes


def update_milliseconds() -> float:
    """Measure one update with the paper's batch in one thread, without other work."""
    learner, batch = new_learner(), factory(PAPER.envs_per_update).make_actor(0).unroll()
    times: list[float] = []
    for _ in range(12):
        began = time.perf_counter()
        learner.step(batch)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[2:])


def idle_rate(feed: Feed, seconds: float) -> float:
    """Measure milliseconds per batch for a learner that only takes batches and publishes."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        feed.batch()
        feed.publish()
        count += 1
    return 1000 * (time.perf_counter() - began) / count


def fitting(num_actors: int, mb_per_actor: float) -> int:
    """Number of actors, at most `num_actors`, that fit in memory."""
    room = psutil.virtual_memory().available - RESERVE_BYTES
    return max(1, min(num_actors, int(room / (1e6 * mb_per_actor)))) if mb_per_actor else num_actors


def main() -> None:
    """Measure according to the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    some = [n for n in (1, 2, 4, 8, 16) if n <= max(num_cores(), 4)]
    parser.add_argument("--actors", type=int, nargs="*", default=some)
    parser.add_argument("--plumbing", type=int, nargs="*", default=[1, 3, 10, 30, 100])
    parser.add_argument("--envs", type=int, nargs="*", default=[1, PAPER.envs_per_update])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--name", default="actors_scaling")
    arguments = parser.parse_args()
    result: dict[str, Any] = provenance() | {"throughput": [], "plumbing": []}

    def note(table: str, row: dict[str, float]) -> None:
        print(row, flush=True)
        result[table].append(row)
        (RESULTS / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")

    for number in arguments.actors:
        note("throughput", throughput(number, arguments.seconds))
    prepare_process(1)
    result["update_ms"] = round(update_milliseconds(), 1)
    print(f"one update alone: {result['update_ms']} ms", flush=True)
    pool_module.START_TIMEOUT = 3600.0  # a hundred take turns at starting on a few cores
    ray.cloudpickle.register_pickle_by_value(__import__("__main__"))
    start_ray(1)
    for num_envs in arguments.envs:
        actor_mb = 0.0
        for number in sorted(arguments.plumbing):
            fits = fitting(number, actor_mb)
            row = plumbing(fits, num_envs, arguments.seconds, result["update_ms"])
            actor_mb = row["actor_mb"]
            note("plumbing", row | ({"left_out": number - fits} if fits < number else {}))
    ray.shutdown()


if __name__ == "__main__":
    main()
