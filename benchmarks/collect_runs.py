"""Learning curves of finished runs as one committed file and one picture.

    python benchmarks/collect_runs.py NAME RUN [RUN ...] [--evaluate EPISODES] [--checkpoint best]

writes benchmarks/results/NAME.json (per run: settings that differ from the defaults, the command that repeats it, the
curve, wall time, and what `rl-eval` says of fresh levels) and NAME.png.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from engram.launch.config import RunConfig, differences, from_dict
from engram.launch.machine import provenance
from engram.launch.run_directory import RunDirectory

RESULTS = Path(__file__).parent / "results"
POINTS = 120
SHORT = {"agent.core": "--core", "agent.core_args": "--core-args", "env_args": "--env-args"}


def curve(run: Path, measure: str) -> dict[str, list[float]]:
    """Steps, wall seconds and the measure, averaged into at most POINTS parts by number of episodes."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if f"episode/{measure}" in row["metrics"]]
    parts = [part for part in np.array_split(np.arange(len(rows)), POINTS) if len(part)]
    mean = [float(np.mean([rows[i]["metrics"][f"episode/{measure}"] for i in part])) for part in parts]
    return {
        "step": [rows[part[-1]]["step"] for part in parts],
        "seconds": [round(rows[part[-1]]["wall_s"], 1) for part in parts],
        measure: [round(value, 4) for value in mean],
    }


def command(config: RunConfig) -> str:
    """Words that repeat a run."""
    words = ["rl-train"]
    for name, _, value in differences(RunConfig(), config):
        flag = SHORT.get(name, "--" + name.split(".")[-1].replace("_", "-"))
        if name in ("run_dir", "seed") or value is None:
            continue
        if isinstance(value, dict):
            words += [flag, *(f"{key}={each}" for key, each in value.items())]
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return " ".join([*words, "--seed", str(config.seed)])


def evaluation(run: Path, episodes: int, checkpoint: str) -> dict[str, Any]:
    """What rl-eval says of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "eval.json"
        rl_eval = Path(sys.executable).with_name("rl-eval")
        words = [rl_eval, run, "--episodes", str(episodes), "--checkpoint", checkpoint, "--json", file]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(file.read_text())
    return {key: value for key, value in found.items() if key not in ("run", *provenance())}


def main() -> None:
    """Collect the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--evaluate", type=int, default=0, help="episodes of rl-eval per run")
    parser.add_argument("--checkpoint", default="latest", help="the one to evaluate: latest, best or a step")
    parser.add_argument("--measure", default="solved")
    given = parser.parse_args()

    figure, axes = plt.subplots(figsize=(7, 4))
    results: dict[str, Any] = provenance("matplotlib") | {"runs": {}}
    for run in given.runs:
        config = from_dict(RunConfig, RunDirectory.open(run, lock=False).config())
        points = curve(run, given.measure)
        found: dict[str, Any] = {"command": command(config), "seed": config.seed, "curve": points}
        if given.evaluate:
            found["evaluation"] = evaluation(run, given.evaluate, given.checkpoint)
        results["runs"][run.name] = found
        label = f"{config.env} {config.agent.core} ({points['seconds'][-1] / 60:.0f} min)"
        axes.plot(np.array(points["step"]) / 1e6, points[given.measure], label=label)
    axes.set(xlabel="million environment steps", ylabel=given.measure, title=given.name)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{given.name}.png", dpi=120)
    (RESULTS / f"{given.name}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
