"""Add a trained agent to the zoo, with its evaluation and provenance.

python benchmarks/add_to_zoo.py NAME RUN [--checkpoint latest] [--member -1] [--episodes 1000]
        [--env-args KEY=VALUE ...] [--commit COMMIT]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collect_runs import command

from engram import zoo
from engram.launch.runs.saved import chosen_members
from engram.launch.runs.trained import imitated, open_run


def evaluation(run: Path, arguments: list[str]) -> dict[str, Any]:
    """Results of rl-eval for a run's agent."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evaluation.json"
        subprocess.run([Path(sys.executable).with_name("rl-eval"), run, *arguments, "--json", file], check=True)
        return json.loads(file.read_text())


def begun(run: Path) -> str:
    """Time of a run's first row of metrics, UTC."""
    first = json.loads((run / "metrics.jsonl").read_text().partition("\n")[0])
    return datetime.fromtimestamp(first["time"], UTC).isoformat(timespec="seconds")


def main() -> None:
    """Evaluate, and write zoo/NAME."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", default="latest", help="latest, best or a step")
    parser.add_argument("--member", type=int, default=-1, help="member of a population; -1 is the best")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument(
        "--env-args", nargs="+", default=[], help="parameters of the environment for the evaluation only"
    )
    parser.add_argument("--commit", default="", help="commit that trained the run; by default the current one")
    options = parser.parse_args()

    trained = open_run(str(options.run), options.checkpoint)
    if imitated(str(options.run)):
        parser.error(f"{options.run} imitates a player; allowed: agents that learn from rewards")
    member = chosen_members(trained.trainees, options.member, False)[0]
    arguments = ["--checkpoint", options.checkpoint, "--episodes", str(options.episodes)]
    arguments += ["--member", str(member)] if len(trained.trainees) > 1 else []
    arguments += ["--env-args", *options.env_args] if options.env_args else []
    results = evaluation(options.run, arguments)
    facts = {
        "env": trained.config.env,
        "core": trained.config.agent.core,
        "evaluation": results["all"] | {"seed": results["evaluation_seed"], "env_args": options.env_args},
        "provenance": {
            "command": command(trained.config),
            "steps": int(trained.checkpoint.name.removeprefix("step-")),
            "member": member,
            "seed": trained.config.seed,
            "commit": options.commit or results["commit"],
            "date": results["date"],
            "begun": begun(options.run),
        },
    }
    lines = (options.run / "config.toml").read_text().splitlines(keepends=True)
    config = "".join(line for line in lines if not line.startswith("run_dir ="))
    folder = zoo.add(options.name, config.encode(), trained.trainees[member].weights, facts)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"zoo:{options.name}: {size / 2**20:.2f} MiB in {folder}")


if __name__ == "__main__":
    main()
