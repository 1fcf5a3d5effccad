"""Learning curves of finished runs as one committed file and one plot.

    python benchmarks/collect_runs.py NAME RUN... [--evaluate EPISODES] [--checkpoint best] [--env-args KEY=VALUE ...]

Writes benchmarks/results/NAME.json (per run: settings that differ from the defaults, the command that repeats it, the
curve, wall time, and the results of `rl-eval` on new levels) and NAME.png. For a population: every member's curve, its
first and last settings, and the number of copies.
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

from engram.launch.config.plain import differences, from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import preset
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.directory import RunDirectory

RESULTS = Path(__file__).parent / "results"
POINTS = 120
SHORT = {"agent.core_args": "--core-args", "env_args": "--env-args"}


def curve(run: Path, measure: str) -> dict[str, list[float]]:
    """Steps, wall seconds, the mean measure of at most POINTS groups of rows, and the curriculum's stage."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if f"episode/{measure}" in row["metrics"]]
    parts = [part for part in np.array_split(np.arange(len(rows)), POINTS) if len(part)]
    mean = [float(np.mean([rows[i]["metrics"][f"episode/{measure}"] for i in part])) for part in parts]
    columns = {
        "step": [rows[part[-1]]["step"] for part in parts],
        "seconds": [round(rows[part[-1]]["wall_s"], 1) for part in parts],
        measure: [round(value, 4) for value in mean],
    }
    stage = "curriculum/stage"
    return columns | (
        {"stage": [rows[part[-1]]["metrics"][stage] for part in parts]} if stage in rows[0]["metrics"] else {}
    )


def population(run: Path, measure: str) -> dict[str, Any]:
    """Members' curves and settings, and the number of environments."""
    members: list[dict[str, Any]] = []
    for folder in sorted((run / "members").iterdir(), key=lambda folder: int(folder.name)):
        rows = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        names = [name for name in rows[0] if name.startswith("population/") and "." in name]
        settings = {name.removeprefix("population/"): [rows[0][name], rows[-1][name]] for name in names}
        members.append({"settings": settings, "curve": curve(folder, measure)})
    events = [json.loads(line) for line in (run / "population.jsonl").read_text().splitlines()]
    return {"members": members, "copies": sum(event["event"] == "copy" for event in events)}


def command(config: RunConfig) -> str:
    """Command that repeats a run."""
    arguments = ["rl-train", "--env", config.env, "--core", config.agent.core]
    for name, _, value in differences(preset("paper", config.env, config.agent.core), config):
        flag = SHORT.get(name, "--" + name.split(".")[-1].replace("_", "-"))
        if name in ("run_dir", "seed") or value is None:
            continue
        if name.startswith("pbt."):
            flag = f"--{name.replace('_', '-')}"
        if name == "start_from":
            value = Path(value).name
        if isinstance(value, dict):
            arguments += [flag, *(f"{key}={str(each).replace(' ', '')}" for key, each in value.items())]
        elif isinstance(value, bool):
            arguments.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            arguments += [flag, *map(str, value)]
        else:
            arguments += [flag, str(value)]
    return " ".join([*arguments, "--seed", str(config.seed)])


def evaluation(run: Path, episodes: int, checkpoint: str, env_args: list[str]) -> dict[str, Any]:
    """Results of rl-eval for a checkpoint, with `env_args` that differ from those of training."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "eval.json"
        rl_eval = Path(sys.executable).with_name("rl-eval")
        arguments = [rl_eval, run, "--episodes", str(episodes), "--checkpoint", checkpoint, "--json", file]
        arguments += ["--env-args", *env_args] if env_args else []
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        results = json.loads(file.read_text())
    return {key: value for key, value in results.items() if key not in ("run", *provenance())}


def main() -> None:
    """Collect the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--evaluate", type=int, default=0, help="episodes of rl-eval per run")
    parser.add_argument("--checkpoint", default="latest", help="the one to evaluate: latest, best or a step")
    parser.add_argument("--env-args", nargs="+", default=[], help="rl-eval's: KEY=VALUE, e.g. split=test")
    parser.add_argument("--measure", default="solved")
    options = parser.parse_args()

    figure, axes = plt.subplots(figsize=(7, 4))
    results: dict[str, Any] = provenance("matplotlib") | {"runs": {}}
    for run in options.runs:
        config = from_dict(RunConfig, RunDirectory.open(run, lock=False).config())
        result: dict[str, Any] = {"command": command(config), "seed": config.seed}
        result |= population(run, options.measure) if config.population else {"curve": curve(run, options.measure)}
        if options.evaluate:
            result["evaluation"] = evaluation(run, options.evaluate, options.checkpoint, options.env_args)
        results["runs"][run.name] = result
        curves = [member["curve"] for member in result["members"]] if config.population else [result["curve"]]
        color = None
        for points in curves:
            label = f"{run.name}: {config.env} {config.agent.core} ({points['seconds'][-1] / 60:.0f} min)"
            (line,) = axes.plot(
                np.array(points["step"]) / 1e6,
                points[options.measure],
                color=color,
                label=None if color else label,
                alpha=0.7 if config.population else 1.0,
            )
            color = line.get_color()
    axes.set(xlabel="million environment steps", ylabel=options.measure, title=options.name)
    axes.grid(alpha=0.3)
    if len(axes.get_lines()) > 6:
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1))
    else:
        axes.legend()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{options.name}.png", dpi=120, bbox_inches="tight")
    (RESULTS / f"{options.name}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
