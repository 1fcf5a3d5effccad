"""Steps per second of the environments on one core, and their compile time.

    python benchmarks/env_speed.py                      all environments: a table and a JSON file in benchmarks/results/
    python benchmarks/env_speed.py boxworld maze        some environments
    python benchmarks/env_speed.py popgym-battleship --env-args difficulty=hard

A step is one environment's step, resets included, with its observation written into a preallocated array; actions are
uniformly random and sampled beforehand. Seconds are those of the process on its core; a rate is the best of several
repetitions, because other load on a machine only ever slows a measurement down. First use is the time from a process
that has imported engram to one reset and one step, with no compiled code on disk; later uses find it there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from engram.envs.pycolab_games import GAMES, make_game, planes
from engram.envs.registration import environment_names, make_batch
from engram.launch.metrics.provenance import provenance

RESULTS = Path(__file__).parent / "results"
FIRST_STEP = """
import sys, time, numpy, engram
from engram.envs.registration import make_batch
start = time.process_time()
env = make_batch(sys.argv[1], 4)
env.reset(seed=0)
env.step(numpy.zeros(4, numpy.int64))
print(time.process_time() - start)
"""


def batched_rate(
    name: str, num_envs: int, repeats: int, seconds: float, seed: int, env_args: dict[str, str] | None = None
) -> float:
    """Best steps per second of `num_envs` environments under random actions."""
    env = make_batch(name, num_envs, **env_args or {})
    observation, reward = env.new_observation(), np.zeros(num_envs, np.float32)
    terminated, truncated = np.zeros((2, num_envs), np.bool_)
    actions = np.random.default_rng(seed).integers(env.single_action_space.n, size=(512, num_envs))
    env.reset_into(observation, seed)

    def play() -> float:
        start = time.process_time()
        for row in actions:
            env.step_into(row, observation, reward, terminated, truncated)
        return time.process_time() - start

    rounds = max(1, int(seconds / play()))
    best = min(sum(play() for _ in range(rounds)) for _ in range(repeats))
    return rounds * actions.size / best


def pycolab_rate(name: str, repeats: int, seconds: float, seed: int) -> float:
    """Best steps per second of one game on the pycolab engine, observation planes included."""
    actions = cycle(np.random.default_rng(seed).integers(5, size=10_000).tolist())
    game = make_game(name)
    planes(name, game.its_showtime()[0].board)
    best = 0.0
    for _ in range(repeats):
        start, steps = time.process_time(), 0
        while time.process_time() - start < seconds:
            for _ in range(100):
                if game.game_over:
                    game = make_game(name)
                    game.its_showtime()
                planes(name, game.play(next(actions))[0].board)
            steps += 100
        best = max(best, steps / (time.process_time() - start))
    return best


def start_seconds(name: str) -> tuple[float, float]:
    """Seconds to the first step without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", FIRST_STEP, name]
        first, later = (
            float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
            for _ in range(2)
        )
    return first, later


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"environment": name}
    how = options.repeats, options.seconds, options.seed, dict(each.split("=", 1) for each in options.env_args)
    row["steps_per_second"] = batched_rate(name, options.num_envs, *how)
    row["one_env_steps_per_second"] = batched_rate(name, 1, *how)
    if name in GAMES:
        row["pycolab_steps_per_second"] = pycolab_rate(name, options.repeats, options.seconds, options.seed)
    if not name.endswith("-twin") and not options.env_args:  # a twin, or another parameter, is the same code
        row["first_use_seconds"], row["later_use_seconds"] = start_seconds(name)
    return row


def table(rows: list[dict[str, Any]], num_envs: int) -> Table:
    """Format the rows as a table for the terminal."""
    shown = Table(title="Environments on one core")
    heads = (
        "environment",
        f"M steps/s ({num_envs} envs)",
        "M steps/s (1 env)",
        "pycolab, M steps/s",
        "first use s",
        "later s",
    )
    for head in heads:
        shown.add_column(head, justify="left" if head == "environment" else "right")
    for row in rows:
        rates = [f"{row[key] / 1e6:.2f}" for key in ("steps_per_second", "one_env_steps_per_second")]
        rates.append(f"{row['pycolab_steps_per_second'] / 1e6:.3f}" if "pycolab_steps_per_second" in row else "")
        starts = [f"{row[key]:.1f}" if key in row else "" for key in ("first_use_seconds", "later_use_seconds")]
        shown.add_row(row["environment"], *rates, *starts)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environments", nargs="*", help="short names; all by default")
    parser.add_argument("--num-envs", type=int, default=256, help="copies stepped together")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions, of which the best counts")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a repetition")
    parser.add_argument("--seed", type=int, default=0, help="seed of environments and actions")
    parser.add_argument(
        "--env-args", nargs="*", default=[], metavar="KEY=VALUE", help="text parameters of the environments"
    )
    parser.add_argument("--name", default="env_speed", help="begins the name of the JSON file")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    options = parser.parse_args()
    rows = [measure(name, options) for name in options.environments or environment_names()]
    Console().print(table(rows, options.num_envs))
    head = provenance("pycolab")
    settings = {key: value for key, value in vars(options).items() if key not in ("output", "environments", "name")}
    file = options.output / f"{options.name}-{head['date'][:10]}.json"
    file.write_text(
        json.dumps(head | {"settings": settings, "load": os.getloadavg()[0], "environments": rows}, indent=2)
    )
    print(f"written to {file}")


if __name__ == "__main__":
    main()
