"""Throughput of `rl-train` on 1 to 16 emulated hosts, and its parts by themselves.

    sudo python benchmarks/scaling/measure.py [--hosts 1 2 4 8 16] [--cores 0.1] [--latencies 0.1 1 10] [--name scaling]

Needs Linux, root, cgroups with a CPU controller and TUN devices. Writes benchmarks/results/scaling.json after every
row, and continues where it ended. Every host has so many cores, and runs a learner and an actor. Series:

    weak      as many learners and actors as hosts, updates in proportion
    strong    the same, updates of the same size
    actors    one learner, as many actors as hosts, updates of the same size

A run starts without limits; then it is measured under each limit and latency in turn (one way, ms).
`load` is the machine's load average: hosts have weight over other processes, and `cores_used` shows what they got.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engram.launch.metrics.provenance import provenance
from hosts import NETWORK, Cluster
from timed_run import Training

RESULTS = Path(__file__).parent.parent / "results"
PARTS = Path(__file__).with_name("parts.py")
WIDE = 0.25
"""Cores of each host that are measured, too, as long as all hosts have one core."""
SMALL = 4
"""Parameters of the exchange that shows latency alone."""


class Case(NamedTuple):
    """Environment and network of a series."""

    words: tuple[str, ...]
    unroll_length: int
    weak: int
    """Environments of an update, per host."""
    strong: int
    """Environments of an update of all hosts."""
    series: tuple[str, ...]


CASES = {
    "boxworld-lstm": Case(
        ("--env", "boxworld", "--preset", "easy", "--core", "lstm"), 20, 8, 16, ("weak", "strong", "actors")
    ),
    "t-maze-concrete": Case(
        ("--env", "t-maze", "--preset", "easy", "--population", "0", "--core", "concrete", "--unroll-length", "50"),
        50,
        4,
        16,
        ("weak",),
    ),
}


class Result:
    """The file of results."""

    def __init__(self, name: str) -> None:
        self._file = RESULTS / f"{name}.json"
        self.content: dict[str, Any] = provenance() | {"parts": {}, "exchanges": [], "training": []}
        if self._file.exists():
            self.content = json.loads(self._file.read_text())

    def has(self, table: str, **key: object) -> bool:
        """Whether a row was measured."""
        return any(all(row[name] == value for name, value in key.items()) for row in self.content[table])

    def add(self, table: str, row: dict[str, Any]) -> None:
        """Print and store a row."""
        print(table, json.dumps(row), flush=True)
        self.content[table].append(row)
        self.save()

    def save(self) -> None:
        """Write the file."""
        self._file.write_text(json.dumps(self.content, indent=1) + "\n")


def flags(case: Case, series: str, hosts: int) -> tuple[list[object], int]:
    """Flags of rl-train, and environments of an update."""
    width = case.weak * hosts if series == "weak" else case.strong
    learners = 1 if series == "actors" else hosts
    arguments: list[object] = [*case.words, "--num-actors", hosts, "--actor-cpus", 2, "--num-learners", learners]
    return [*arguments, "--envs-per-update", width, "--envs-per-actor", width // hosts], width


def measure_parts(cluster: Cluster, result: Result, name: str, case: Case) -> None:
    """CPU time of environments, inference, learning and publication, on a host without a limit."""
    if name not in result.content["parts"]:
        command = [sys.executable, PARTS, "cpu", "--envs", 1, 4, 8, 16, "--", *case.words]
        times = json.loads(cluster.hosts[0].run(command).splitlines()[-1])
        print(name, times, flush=True)
        result.content["parts"][name] = times
        result.save()


def measure_exchanges(cluster: Cluster, result: Result, hosts: int, parameters: int, latency: float) -> None:
    """Gloo's exchange between hosts, without limits and training."""
    if hosts not in (2, 4, 8) or result.has("exchanges", hosts=hosts, parameters=parameters, latency_ms=latency):
        return
    cluster.links.latency = latency / 1000
    ranks = [
        cluster.hosts[rank].start(
            [sys.executable, PARTS, "reduce", f"{NETWORK}.1:29500", rank, hosts, parameters, 20],
            stdout=-1,
        )
        for rank in range(hosts)
    ]
    times = [json.loads(each.communicate(timeout=200)[0].splitlines()[-1]) for each in ranks]
    means = {name: round(sum(each[name] for each in times) / hosts, 3) for name in times[0]}
    result.add("exchanges", {"hosts": hosts, "parameters": parameters, "latency_ms": latency, **means})


def measure_training(
    cluster: Cluster,
    result: Result,
    key: dict[str, Any],
    cores: Sequence[float],
    latencies: Sequence[float],
    seconds: float,
) -> None:
    """All limits and latencies of a run."""
    hosts, case = key["hosts"], CASES[key["case"]]
    points = [(each, late) for each in cores for late in latencies if each == min(cores) or late == min(latencies)]
    points = [
        (each, late)
        for each, late in points
        if (each == min(cores) or hosts * each <= 1) and not result.has("training", cores=each, latency_ms=late, **key)
    ]
    if not points:
        return
    arguments, width = flags(case, key["series"], hosts)
    with tempfile.TemporaryDirectory(prefix="engram-scaling-", dir="/var/tmp") as folder:
        cluster.links.latency = min(latencies) / 1000
        with Training(cluster, Path(folder) / "run", arguments) as training:
            training.wait(2)  # functions are compiled, all actors are there
            for each, late in points:
                cluster.limit(each)
                cluster.links.latency = late / 1000
                row = key | {"cores": each, "latency_ms": late, "envs_per_update": width}
                row |= training.measure(seconds, settle=2) | {"load": round(os.getloadavg()[0], 1)}
                result.add("training", row)


def main() -> None:
    """Measure according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--cores", type=float, nargs="+", default=[0.1, WIDE])
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--name", default="scaling")
    options = parser.parse_args()
    result = Result(options.name)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Cluster(Path(folder), max(options.hosts)) as cluster:
        for name in options.cases:
            measure_parts(cluster, result, name, CASES[name])
        parameters = [SMALL, result.content["parts"][options.cases[0]]["parameters"]]
        for hosts in sorted(options.hosts):
            cluster.grow(hosts)
            for name in options.cases:
                for series in CASES[name].series:
                    key = {"case": name, "series": series, "hosts": hosts}
                    try:
                        measure_training(cluster, result, key, options.cores, options.latencies, options.seconds)
                    except RuntimeError as problem:
                        print(f"left out: {key}: {problem}", file=sys.stderr, flush=True)
        for hosts in sorted(options.hosts):
            for number in parameters:
                for latency in options.latencies:
                    measure_exchanges(cluster, result, hosts, number, latency)


if __name__ == "__main__":
    main()
