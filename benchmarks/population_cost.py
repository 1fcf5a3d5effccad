"""Cost of a population for its learner process: CPU time per update, processes, memory per additional member.

    python benchmarks/population_cost.py                     t-maze with concrete, nine members
    python benchmarks/population_cost.py --core lstm --members 4

Learner time: a run of one member and a population alternate in this process, round by round, each with all of its
hosting (batches, update, publishing, recorded scores, evaluations with copies, rows of metrics). The same process acts;
that time is subtracted. Times are CPU times, so other load does not count. Steps per second of all members, processes
and memory are those of `rl-train` with two Ray actors. Writes benchmarks/results/population-cost-ENV-CORE.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from engram.agents.process import prepare_process
from engram.launch.api.training import make_agents, make_learners, make_panel, make_trainer
from engram.launch.config.plain import to_dict
from engram.launch.config.run_config import RunConfig, find_device
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.directory import RunDirectory
from engram.launch.train.acting import make_pool
from engram.launch.train.trainer import Trainer
from process_tree import tree_memory

RESULTS = Path(__file__).parent / "results"
SCHEME = ["--pbt.scheme", "truncation", "--pbt.explore", "learner.lr=loguniform(1e-5,1e-3)"]
EVALUATIONS = ["--pbt.warmup", "30", "--pbt.interval", "30", "--pbt.window", "20"]
"""Far more frequent than in real runs, so that evaluations and copies are part of the cost."""
WARM_UP = 3


class Meter:
    """A pool whose CPU time is measured separately."""

    def __init__(self, pool: Any) -> None:
        self._pool, self.seconds = pool, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def next(self) -> Any:
        started = time.process_time()
        unroll = self._pool.next()
        self.seconds += time.process_time() - started
        return unroll


def open_run(arguments: list[str], folder: Path, files: ExitStack) -> tuple[Trainer, Meter]:
    """Open a run in this process, ready for its first update."""
    config: RunConfig = parse_run([*arguments, "--local", "--run-dir", str(folder)])
    factory = config.factory()
    agents, fields = make_agents(config, factory, find_device("cpu"))
    learners = make_learners(config, agents)
    meter = Meter(make_pool(config, factory, print))
    directory = files.enter_context(RunDirectory.create(config.run_dir, to_dict(config), name="cost"))
    panel = make_panel(config, directory.path, 0)
    trainer = make_trainer(config, learners, fields, meter, directory, panel, None, files)  # type: ignore[arg-type]
    for member in trainer.members:
        meter.publish(member.weights(meter))
    return trainer, meter


def round_seconds(trainer: Trainer, meter: Meter) -> float:
    """Learner's CPU time of one update of every member."""
    meter.seconds, started = 0.0, time.process_time()
    for _ in trainer.members:
        trainer.update()
    return time.process_time() - started - meter.seconds


def learner_time(arguments: list[str], population: list[str], rounds: int) -> dict[str, Any]:
    """Measure CPU milliseconds of rounds of both runs, in turn."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        one = open_run(arguments, Path(folder) / "one", files)
        many = open_run([*arguments, *population, *EVALUATIONS], Path(folder) / "many", files)
        pairs = [(round_seconds(*one), round_seconds(*many)) for _ in range(WARM_UP + rounds)][WARM_UP:]
        host = many[0].population
        assert host is not None
        evaluations = host.controller.generation
    ours, theirs = [[1e3 * pair[i] for pair in pairs] for i in (0, 1)]
    return {
        "rounds": rounds,
        "evaluations": evaluations,
        "one_member_update_ms": round(statistics.mean(ours), 3),
        "population_round_ms": round(statistics.mean(theirs), 3),
        "ratio_of_means": round(sum(theirs) / sum(ours), 3),
        "median_ratio_of_pairs": round(statistics.median(b / a for a, b in pairs), 3),
        "one_member_updates_ms": [round(x, 2) for x in ours],
        "population_rounds_ms": [round(x, 2) for x in theirs],
    }


def processes(arguments: list[str], seconds: float) -> dict[str, Any]:
    """Actor processes and memory of a run on Ray, `seconds` after its first row of metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            str(Path(sys.executable).with_name("rl-train")),
            *arguments,
            "--num-actors",
            "2",
            "--log-every",
            "20000",
            "--run-dir",
            str(run),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            rows = run / ("members/0/metrics.jsonl" if "--population" in arguments else "metrics.jsonl")
            while not (rows.exists() and rows.stat().st_size):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.2)
            first = last_row(run)
            time.sleep(seconds)
            last = last_row(run)
            tree = psutil.Process(process.pid).children(recursive=True)
            actors = [each for each in tree if "ray::ActorProcess" in " ".join(each.cmdline())]
            return {
                "steps_per_second": round((last["step"] - first["step"]) / (last["time"] - first["time"])),
                "actor_processes": len(actors),
                "learner_mb": round(pss(process.pid), 1),
                "actors_mb": round(sum(pss(each.pid) for each in actors), 1),
                "whole_tree_mb": round(tree_memory(process.pid) / 1e6, 1),
            }
        finally:
            process.terminate()
            process.wait()


def last_row(run: Path) -> dict[str, Any]:
    """Return the newest row of a run's metrics, for a population that of the whole; wait for the first row."""
    file = run / "metrics.jsonl"
    while not (file.exists() and file.read_text().endswith("}\n")):
        time.sleep(0.2)
    return json.loads(file.read_text().splitlines()[-1])


def pss(pid: int) -> float:
    """A process's memory in MB, with shared pages divided by the number of processes that share them."""
    return psutil.Process(pid).memory_full_info().pss / 1e6


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", default="t-maze")
    parser.add_argument("--core", default="concrete")
    parser.add_argument("--members", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--skip-ray", action="store_true", help="only the learner's time")
    options = parser.parse_args()
    prepare_process(1)
    arguments = ["--env", options.env, "--core", options.core]
    population = ["--population", str(options.members), *SCHEME]
    config = parse_run(arguments)
    learners = make_learners(config, make_agents(config, config.factory(), find_device("cpu"))[0])
    parameters = sum(p.numel() for p in learners[0].agent.parameters())
    result: dict[str, Any] = provenance("scipy") | {
        "env": options.env,
        "core": options.core,
        "members": options.members,
        "parameters": parameters,
        "parameters_mb": round(4 * parameters / 1e6, 3),
        "learner_time": learner_time(arguments, population, options.rounds),
    }
    if not options.skip_ray:
        alone, together = (processes([*arguments, *more], options.seconds) for more in ([], population))
        extra = {
            name: round((together[name] - alone[name]) / (options.members - 1), 2)
            for name in ("learner_mb", "actors_mb")
        }
        result |= {"one_member": alone, "population": together, "for_each_member_more": extra}
    file = RESULTS / f"population-cost-{options.env}-{options.core}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    measured = result["learner_time"] | {name: result.get(name) for name in ("one_member", "population")}
    for name, value in measured.items():
        if not isinstance(value, list):
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
