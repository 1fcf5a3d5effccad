"""Two learners on two emulated hosts of one core each, against one learner on one such host.

    sudo python benchmarks/scaling/two_learners.py [--seconds 25] [--turns 2] [--cases boxworld-rmc t-maze-population]

Writes benchmarks/results/two-learners.json; takes nine minutes. Nothing else should run, and the machine
needs two cores. Each host has a learner, an actor, one core, and a limit of one core's CPU time.

`alone` is one run with the other core idle. `one` is the mean of two separate runs at once, each on a host and cluster
of its own, which excludes what the two cores share (caches, memory, power). `two` has an update of the same size as
`one`; so has `actors`, with as many environments per actor as `one`, and therefore a policy lag of up to 2; `wide` has
an update of twice the size. Ratios: each of them / one, two / alone.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from engram.launch.metrics.provenance import provenance
from hosts import Cluster
from timed_run import Training

RESULTS = Path(__file__).parent.parent / "results"
CASES: dict[str, tuple[str, ...]] = {
    "boxworld-rmc": ("--env", "boxworld", "--core", "rmc"),
    "t-maze-population": ("--env", "t-maze", "--core", "concrete", "--preset", "easy", "--population", "8"),
}
CORES = 1.0
SETTLE = 5.0
START = {"alone": (1, 1), "one": (2, 1), "two": (1, 2), "actors": (1, 2), "wide": (1, 2)}
"""Clusters at once, and hosts of each."""
MORE: dict[str, dict[str, tuple[str, ...]]] = {
    "boxworld-rmc": {"actors": ("--envs-per-actor", "32"), "wide": ("--envs-per-update", "64")}
}
"""Additional flags of the kinds other than `two`, for the cases that have them."""


def speed(flags: tuple[str, ...], clusters: int, hosts: int, seconds: float) -> list[dict[str, Any]]:
    """Measurements of so many runs at once, each on so many hosts."""
    with contextlib.ExitStack() as stack:
        runs: list[Training] = []
        for number in range(clusters):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-scaling-", dir="/var/tmp")))
            cluster = stack.enter_context(Cluster(folder, hosts, links=False, cores=(0, 1) if hosts > 1 else (number,)))
            cluster.grow(hosts)
            command = [*flags, "--num-learners", hosts, "--num-actors", hosts, "--actor-cpus", 2]
            runs.append(stack.enter_context(Training(cluster, folder / "run", command)))
        for run in runs:
            run.wait(2)
        for run in runs:
            run.cluster.limit(CORES)
        results: list[dict[str, Any]] = []
        threads = [
            threading.Thread(target=lambda run=run: results.append(run.measure(seconds, SETTLE))) for run in runs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def main() -> None:
    """Measure according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--name", default="two-learners")
    arguments = parser.parse_args()
    result: dict[str, Any] = provenance() | {"cores_per_host": CORES, "seconds": arguments.seconds, "cases": {}}
    for case in arguments.cases:
        rows = defaultdict[str, list[dict[str, Any]]](list)
        for turn in range(arguments.turns):
            for kind, (clusters, hosts) in START.items():
                more = MORE.get(case, {}).get(kind, ())
                if (turn == 0 or kind != "alone") and (more or kind not in ("actors", "wide")):
                    flags = CASES[case] + more
                    rows[kind] += speed(flags, clusters, hosts, arguments.seconds)
                    print(case, kind, rows[kind][-clusters:], flush=True)
        means = {kind: statistics.mean(row["steps_per_second"] for row in each) for kind, each in rows.items()}
        ratios = {
            f"{kind} / one": round(means[kind] / means["one"], 3) for kind in ("two", "actors", "wide") if kind in means
        }
        ratios["two / alone"] = round(means["two"] / means["alone"], 3)
        print(case, means, ratios, flush=True)
        result["cases"][case] = {"flags": CASES[case], "steps_per_second": means, "ratios": ratios, "runs": rows}
        (RESULTS / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
