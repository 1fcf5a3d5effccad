"""A thousand actors that die one after another: leaks of memory, files and processes.

    python benchmarks/restarts.py [--restarts 1000] [--name restarts]

The actor process of the pool is replaced by a tiny one that ends itself at its first unroll, since a thousand processes
with torch would take an hour. Everything else is real (slots, requests, failures), except that the pauses after
failures are omitted. Sampled twenty times: memory of the driver and of all processes, shared memory, the driver's open
files and threads, processes, and what Ray has written to its session folder. Writes benchmarks/results/restarts.json;
`per_restart` is what each restart of the second half added.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from engram.actors import member_pool
from engram.actors.remote import pool as pool_module
from engram.actors.remote.pool import RayPool
from engram.actors.remote.slot import ProcessPlace, RequestWindow, place_of_this_process
from engram.agents.values import Weights
from engram.launch.cluster.ray_session import start_ray
from engram.launch.metrics.provenance import provenance
from process_tree import tree_memory

RESULTS = Path(__file__).parent / "results"


class ShortLived:
    """An actor that dies at its first request."""

    def __init__(self, *_: Any) -> None:
        pass

    def ready(self) -> ProcessPlace:
        return place_of_this_process(ray.util.get_node_ip_address())

    def answer(self, *_: Any) -> None:
        """Die as if killed by a signal."""
        os._exit(1)


def sample(restarts: int, began: float, session: Path) -> dict[str, float]:
    """Sample memory, files, threads and processes."""
    own, written = psutil.Process(), [path.stat() for path in session.rglob("*") if path.is_file()]
    return {
        "restarts": restarts,
        "seconds": round(time.monotonic() - began, 1),
        "driver_mb": round(own.memory_info().rss / 1e6, 1),
        "tree_mb": round(tree_memory(own.pid) / 1e6, 1),
        "shared_mb": round(shutil.disk_usage("/dev/shm").used / 1e6, 1),
        "open_files": own.num_fds(),
        "threads": own.num_threads(),
        "processes": len(own.children(recursive=True)),
        "session_files": len(written),
        "session_mb": round(sum(each.st_size for each in written) / 1e6, 2),
    }


def per_restart(samples: list[dict[str, float]]) -> dict[str, float]:
    """Least-squares slope of each quantity over the second half of the samples."""
    half = samples[len(samples) // 2 :]
    at = [each["restarts"] for each in half]
    return {name: round(float(np.polyfit(at, [each[name] for each in half], 1)[0]), 5) for name in half[0]}


def main() -> None:
    """Restart actors, sample the resources and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--name", default="restarts", help="of the file of results")
    arguments = parser.parse_args()
    number = arguments.restarts
    ray.cloudpickle.register_pickle_by_value(__import__("__main__"))
    pool_module.ActorProcess = ShortLived  # type: ignore[assignment,misc]
    member_pool.LONGEST_PAUSE = 0.0  # they are all failures in a row
    start_ray(2)
    pool = RayPool(int, 1, max_failures=10 * number, window=RequestWindow(1, 1, 1, 1), report=lambda _: None)
    pool.publish(Weights(0, 0, np.zeros(1000, np.float32)))
    node: Any = ray._private.worker._global_node
    session, every = Path(node.get_session_dir_path()), max(1, number // 20)
    began, samples = time.monotonic(), []
    while pool.failures < number:
        failures = pool.failures
        while pool.failures == failures:
            pool.next()
        if pool.failures % every == 0:
            samples.append(sample(pool.failures, began, session))
            print(samples[-1], flush=True)
    pool.close()
    ray.shutdown()
    time.sleep(3)
    left = [
        child.name() for child in psutil.Process().children(recursive=True) if "orphans" not in str(child.cmdline())
    ]
    result = provenance() | {"per_restart": per_restart(samples), "samples": samples, "processes_left": left}
    (RESULTS / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
