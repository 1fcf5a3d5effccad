"""Compare the speed of two versions of engram on one machine, in turns.

    python benchmarks/before_and_after.py FOLDER [--only cores|environments|training] [--cores NAME ...] [--write]

FOLDER contains a checkout of the earlier version named `engram`; the later version is the installed one. Each version
runs in a separate process, and short measurements alternate between the versions, so that other load on the machine
slows both equally. Rates are per second of CPU time. A turn gives one ratio, later rate / earlier rate; the result has
the median and quartiles of the ratios, and both median rates. With --write it goes into results/house.json.

It measures every core that both versions have, one step for acting and an unroll with its gradient for learning (the
settings of `speed/cores.py`, one thread); every environment that both have, in batches; and `rl-train --env boxworld
--core rmc --local`, between two rows of its metrics.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from engram.launch.metrics.provenance import provenance

RESULT = Path(__file__).parent / "results" / "house.json"

WORKER = """
import json, sys, time
import numpy, torch
import engram
from engram.agents.cores.core import map_state
from engram.agents.cores.registry import core_names, make_core
from engram.agents.process import prepare_process
from engram.envs.registration import make_batch, environment_names

prepare_process(1)
torch.manual_seed(0)


def core_works(name, size, options, batch, length):
    core = make_core(name, size, **options)
    inputs = torch.randn(length, batch, size).requires_grad_()
    reset = torch.rand(length, batch) < 1 / 30
    row = inputs[0].detach()
    state = core.initial_state(batch)

    fresh = torch.zeros(batch, dtype=torch.bool)

    def act():
        nonlocal state
        with torch.inference_mode():
            step = core.acting(state, batch) if hasattr(core, "acting") else lambda x, _, state: core(x, state)
            for _ in range(40):
                _, state = step(row, fresh, state)

    act()
    start = map_state(torch.clone, state)

    def learn():
        outputs, _, loss = core.unroll(inputs, reset, start)
        total = outputs.square().mean()
        (total if loss is None else total + loss.mean()).backward()
        core.zero_grad()
        inputs.grad = None

    return {"acting": (act, 40 * batch), "learning": (learn, length * batch)}


def environment_works(name, batch):
    env = make_batch(name, batch)
    observation, reward = env.new_observation(), numpy.zeros(batch, numpy.float32)
    ends = numpy.zeros((2, batch), numpy.bool_)
    actions = numpy.random.default_rng(0).integers(env.single_action_space.n, size=(32, batch))
    env.reset_into(observation, 0)

    def play():
        for row in actions:
            env.step_into(row, observation, reward, *ends)

    return {"steps": (play, actions.size)}


def rate(work, steps, seconds):
    best, end = float("inf"), time.process_time() + seconds
    while time.process_time() < end or best == float("inf"):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return steps / best


print(json.dumps({"cores": core_names(), "environments": environment_names()}), flush=True)
works = {}
for line in sys.stdin:
    asked = json.loads(line)
    if "seconds" in asked:
        print(json.dumps({name: rate(*work, asked["seconds"]) for name, work in works.items()}), flush=True)
    else:
        kind = asked.pop("kind")
        works = {"core": core_works, "environment": environment_works}[kind](**asked)
        for work, _ in works.values():
            work()
        print(json.dumps("ready"), flush=True)
"""
TRAIN = """
import sys
sys.argv = ["rl-train", *sys.argv[1:]]
try:
    from engram.launch.entry import rl_train as run
except ImportError:
    from engram.launch.train import run
run()
"""
TRAINING = (
    "--env boxworld --core rmc --local --envs-per-actor 128 --total-steps 48000 --log-every 5000"
    " --checkpoint-every 1000000 --seed 1"
)
EARLIER, LATER = 0, 1


def environment(folder: Path | None) -> dict[str, str]:
    """Return the environment variables of a process that imports engram from `folder`, or the installed version."""
    paths = {"PYTHONPATH": str(folder)} if folder else {}
    return os.environ | {"OMP_NUM_THREADS": "1"} | paths


class Version:
    """A process that measures with one version of engram."""

    def __init__(self, folder: Path | None) -> None:
        command = [sys.executable, "-c", WORKER]
        pipe = subprocess.PIPE
        # In an empty folder: in a checkout, Python would import its folders as top-level packages.
        self._place = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment(folder), cwd=self._place.name
        )
        self.knows: dict[str, list[str]] = self._read()

    def ask(self, **request: Any) -> Any:
        """Send one request and return its result."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._place.cleanup()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a measuring process ended with {self._process.wait()}")
        return json.loads(line)


def summary(earlier: list[float], later: list[float]) -> dict[str, float]:
    """Return median and quartiles of the ratios of all turns, and both median rates."""
    ratios = [b / a for a, b in zip(earlier, later, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    rates = {"before": statistics.median(earlier), "after": statistics.median(later)}
    return {"ratio": round(middle, 3), "from": round(low, 3), "to": round(high, 3)} | {
        name: round(rate) for name, rate in rates.items()
    }


def in_turns(versions: list[Version], turns: int, seconds: float, **work: Any) -> dict[str, dict[str, float]]:
    """Measure `work` in `turns` turns; return a `summary` by name."""
    for version in versions:
        version.ask(**work)
    rates: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(turns):
        for which in (EARLIER, LATER) if turn % 2 == 0 else (LATER, EARLIER):
            for name, rate in versions[which].ask(seconds=seconds).items():
                rates.setdefault(name, ([], []))[which].append(rate)
    return {name: summary(*pair) for name, pair in rates.items()}


def core_speeds(versions: list[Version], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every core in batches of 32 and 128."""
    from speed.cores import BOXWORLD, SETTINGS, UNROLL_LENGTHS, USUAL_LENGTH

    from engram.launch.config.run_flags import preset

    both = [name for name in versions[EARLIER].knows["cores"] if name in versions[LATER].knows["cores"]]
    speeds: dict[str, Any] = {}
    for name in arguments.cores or both:
        environment, size = SETTINGS.get(name, BOXWORLD)
        length, options = UNROLL_LENGTHS.get(name, USUAL_LENGTH), preset("paper", environment, name).agent.core_args
        work = {"kind": "core", "name": name, "size": size, "options": options, "length": length}
        for batch in arguments.batch_sizes:
            speeds[f"{name} {batch}"] = in_turns(versions, arguments.turns, arguments.seconds, batch=batch, **work)
            print(f"{name} {batch}", json.dumps(speeds[f"{name} {batch}"]), file=sys.stderr, flush=True)
            if arguments.write:
                keep("cores", speeds)
    return speeds


def environment_speeds(versions: list[Version], options: argparse.Namespace) -> dict[str, Any]:
    """Measure every environment in batches of 256."""
    both = [name for name in versions[EARLIER].knows["environments"] if name in versions[LATER].knows["environments"]]
    speeds: dict[str, Any] = {}
    for name in both:
        if not name.endswith("-twin"):  # a twin is the same code
            work = {"kind": "environment", "name": name, "batch": 256}
            speeds[name] = in_turns(versions, options.turns, options.seconds, **work)["steps"]
            print(name, json.dumps(speeds[name]), file=sys.stderr, flush=True)
            if options.write:
                keep("environments", speeds)
    return speeds


def training_rate(folder: Path | None) -> float:
    """Measure steps per second of CPU time between the second row of metrics and the last."""
    with tempfile.TemporaryDirectory() as place:
        arguments = [*TRAINING.split(), "--run-dir", f"{place}/run"]
        rows: list[tuple[float, float]] = []
        with open(f"{place}/log", "w") as log:
            process = psutil.Popen(
                [sys.executable, "-c", TRAIN, *arguments], env=environment(folder), cwd=place, stdout=log, stderr=log
            )
            metrics = Path(place, "run", "metrics.jsonl")
            while process.poll() is None:
                spent = process.cpu_times()
                lines = metrics.read_text().splitlines() if metrics.exists() else []
                if len(lines) > len(rows):
                    done = json.loads(lines[-1])["step"]
                    rows += [(done, spent.user + spent.system)] * (len(lines) - len(rows))
                time.sleep(0.02)
        if process.returncode != 0:
            raise RuntimeError(f"rl-train ended with {process.returncode}: {Path(place, 'log').read_text()[-2000:]}")
    (first, begin), (last, end) = rows[1], rows[-1]
    return (last - first) / (end - begin)


def training_speeds(before: Path, turns: int) -> dict[str, float]:
    """Measure complete training runs of RMC, one with each version per turn."""
    pairs = [(training_rate(before), training_rate(None)) for _ in range(turns)]
    return summary([pair[EARLIER] for pair in pairs], [pair[LATER] for pair in pairs])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make all requested measurements."""
    before = options.before.resolve()
    results: dict[str, Any] = {}
    versions = [Version(before), Version(None)]
    try:
        if options.only in (None, "cores"):
            results["cores"] = core_speeds(versions, options)
        if options.only in (None, "environments"):
            results["environments"] = environment_speeds(versions, options)
    finally:
        for version in versions:
            version.close()
    if options.only in (None, "training"):
        results["training"] = training_speeds(before, max(2, options.turns // 2))
    return results


def keep(part: str, results: dict[str, Any]) -> None:
    """Write one part of the results to results/house.json, with machine, versions and commit."""
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    document[part] = document.get(part, {}) | results
    RESULT.write_text(json.dumps(document | provenance(), indent=1) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, metavar="FOLDER", help="where the earlier version lies as `engram`")
    parser.add_argument("--only", choices=("cores", "environments", "training"), help="one part of it")
    parser.add_argument("--cores", nargs="+", default=[], help="only these cores")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time of one measurement")
    parser.add_argument("--write", action="store_true", help="into results/house.json")
    options = parser.parse_args()
    results = measure(options)
    print(json.dumps(results, indent=1))
    if options.write and "training" in results:
        keep("training", results["training"])


if __name__ == "__main__":
    main()
