"""Collect finished runs of rl-probe; those of `recall` are tested again with delays far beyond the trained ones.

    python benchmarks/probe_results.py RUN ... [--sequences 256]

Adds to results/probe-runs.json, by the name of the run's folder; existing entries remain unless the run has more
updates.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from engram.agents.process import prepare_process
from engram.base.files import replace_file
from engram.envs.tasks.task import make_task
from engram.launch.config.plain import from_dict
from engram.launch.metrics.provenance import provenance
from engram.launch.probe.command import RESULT, TEST_BATCH, ProbeConfig, ProbeRun
from engram.launch.runs.directory import RunDirectory
from engram.learners.supervised import examine

RESULTS = Path(__file__).parent / "results" / "probe-runs.json"
DELAYS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def curve(path: Path, sequences: int) -> list[dict[str, Any]]:
    """Accuracy of a run's network after every delay."""
    with RunDirectory.open(path) as directory:
        config: ProbeConfig = from_dict(ProbeConfig, directory.config())
        run = ProbeRun(config, print)
        run.restore(directory)
        points: list[dict[str, Any]] = []
        for delay in DELAYS:
            task_args = {**config.task_args, "delay": delay}
            task = make_task(config.task, TEST_BATCH, task_args, seed=config.seed, part="test")
            score = examine(run.learner.model, task, -(-sequences // TEST_BATCH))
            points.append({"delay": delay, "chance": task.chance, **score.plain()})
        return points


def main() -> None:
    """Collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sequences", type=int, default=256, help="of every delay")
    options = parser.parse_args()
    prepare_process(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for path in options.runs:
        result = json.loads((path / RESULT).read_text())
        if results.get(path.name, {}).get("updates", -1) >= result["updates"]:
            continue
        if result["task"] == "recall":
            result["beyond"] = curve(path, options.sequences)
            print(path.name, [(test["delay"], round(test["accuracy"], 3)) for test in result["beyond"]], flush=True)
        results[path.name] = result | {"collected": provenance()}
        replace_file(RESULTS, json.dumps(results, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
