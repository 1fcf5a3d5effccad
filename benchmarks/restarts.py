"""A thousand actors that die one after another: what stays of them.

    python benchmarks/restarts.py [--restarts 1000]

The pool's own process that serves an actor is replaced by a tiny one that ends itself at its first unroll, since a
thousand processes with torch would take an hour. Everything else is the pool's and Ray's own: seats, requests, pauses,
failures. Noted every 50 restarts: memory of the driver and of all processes, open files, threads and processes. Writes
benchmarks/results/restarts.json.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

from engram.actors import failures as failures_module
from engram.actors import ray_pool
from engram.actors.ray_pool import RayPool
from engram.agents.weights import Weights
from engram.launch.machine import provenance
from engram.launch.process_tree import tree_memory
from engram.launch.ray_session import start_ray

RESULTS = Path(__file__).parent / "results"


class ShortLived:
    """Starts, and dies of the first request."""

    def __init__(self, *_: Any) -> None:
        pass

    def ready(self) -> str:
        """See ActorProcess."""
        return "here"

    def unroll(self, _: Any) -> None:
        """Die as from a signal."""
        os._exit(1)


def sample(restarts: int, began: float) -> dict[str, float]:
    """What there is of memory, files, threads and processes."""
    own = psutil.Process()
    return {
        "restarts": restarts,
        "seconds": round(time.monotonic() - began, 1),
        "driver_mb": round(own.memory_info().rss / 1e6, 1),
        "tree_mb": round(tree_memory(own.pid) / 1e6, 1),
        "files": own.num_fds(),
        "threads": own.num_threads(),
        "processes": len(own.children(recursive=True)),
    }


def main() -> None:
    """Restart, look, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--restarts", type=int, default=1000)
    number = parser.parse_args().restarts
    ray.cloudpickle.register_pickle_by_value(__import__("__main__"))
    ray_pool.ActorProcess = ShortLived  # type: ignore[assignment,misc]
    failures_module.LONGEST_PAUSE = 0.0  # they are all failures in a row
    start_ray(2)
    pool = RayPool(int, 1, max_failures=10 * number, report=lambda _: None)
    pool.publish(Weights(0, 0, np.zeros(1000, np.float32)))
    began, samples = time.monotonic(), []
    while pool.failures < number:
        seen = pool.failures
        while pool.failures == seen:
            pool.next()
        if pool.failures % 50 == 0:
            samples.append(sample(pool.failures, began))
            print(samples[-1], flush=True)
    pool.close()
    ray.shutdown()
    time.sleep(3)
    left = [
        child.name() for child in psutil.Process().children(recursive=True) if "janitor" not in str(child.cmdline())
    ]
    result = provenance() | {"samples": samples, "processes_left": left}
    (RESULTS / "restarts.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
