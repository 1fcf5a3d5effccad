"""Parts of training by themselves, as JSON: CPU seconds of a learner, an actor and an exchange.

python parts.py cpu --envs 1 8 32 -- FLAGS OF rl-train     seconds per step of `rl-bench`'s parts, by environments
python parts.py reduce STORE RANK SIZE PARAMETERS COUNT    one rank of Gloo's exchanges, connected by a TCP store
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from engram.agents.process import prepare_process
from engram.agents.values import flatten
from engram.launch.bench.command import measure, open_parts
from engram.launch.config.run_flags import parse_run
from engram.learners.batches import Group
from engram.learners.group import GlooGroup
from engram.learners.learner import Learner


class CountingGroup(Group):
    """A learner alone that counts the exchanges of a group."""

    exchanges = 0

    def total(self, *parts: Any) -> Sequence[Any]:
        self.exchanges += 1
        return parts

    def reduce(self, parameters: Any, gradients: Any, metrics: Any) -> Any:
        self.exchanges += 1
        return gradients, metrics


def cpu(arguments: Sequence[str], widths: Sequence[int], seconds: float) -> dict[str, Any]:
    """Milliseconds per update of every width and part, and the numbers of parameters and exchanges."""
    prepare_process(1)
    config = parse_run(arguments)
    result: dict[str, Any] = {"unroll_length": config.unroll_length, "ms": {}}
    for width in widths:
        each = replace(config, envs_per_update=width, envs_per_actor=width, num_actors=1)
        with open_parts(each, torch.device("cpu")) as work:
            steps = width * config.unroll_length
            result["ms"][width] = {name: 1000 * steps * cost for name, cost in measure(work, seconds, 3).items()}
    actor, group = config.factory().make_actor(0), CountingGroup()
    learner = Learner(config.factory().make_agent(actor.batch), config.learner, config.total_steps)
    learner.join(group)
    for _ in range(2):
        group.exchanges = 0
        learner.step(actor.unroll())
    result["exchanges"] = group.exchanges
    actor.close()
    times: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        flatten(learner.agent)
        times.append(time.perf_counter() - began)
    result["parameters"] = flatten(learner.agent).size
    result["ms_flatten"] = 1000 * statistics.median(times)
    return result


def reduce(store: str, rank: int, size: int, parameters: int, count: int) -> dict[str, float]:
    """Median wall and mean CPU milliseconds of one learner's exchange of so many parameters."""
    prepare_process(1)
    host, port = store.split(":")
    place = TCPStore(host, int(port), size, is_master=rank == 0)
    network = host.rpartition(".")[0]
    group = GlooGroup(place, rank, [1] * size, f"{network}.{rank + 1}")
    arguments = [torch.zeros(parameters)], [torch.ones(parameters)], torch.zeros(10)
    for _ in range(3):
        group.reduce(*arguments)
    wall: list[float] = []
    used = time.process_time()
    for _ in range(count):
        began = time.perf_counter()
        group.reduce(*arguments)
        wall.append(time.perf_counter() - began)
    used = (time.process_time() - used) / count
    group.total(0.0)
    time.sleep(0.5)  # the others still read from the store
    return {"ms": 1000 * statistics.median(wall), "ms_mean": 1000 * statistics.mean(wall), "ms_cpu": 1000 * used}


def main() -> None:
    """Measure according to the command line."""
    if sys.argv[1] == "reduce":
        store, *numbers = sys.argv[2:]
        print(json.dumps(reduce(store, *map(int, numbers))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=1.5)
    split = sys.argv.index("--")
    options = parser.parse_args(sys.argv[2:split])
    print(json.dumps(cpu(sys.argv[split + 1 :], options.envs, options.seconds)))


if __name__ == "__main__":
    main()
