"""Steps per second of training on an environment of 2 ms per step, with and without --env-workers.

    python benchmarks/env_workers.py [busy|sleeping] [num_workers]

Runs rl-train twice per setting, alternately, and prints the ratio of the best rates.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_SECONDS = 2e-3


class Sleeping(gymnasium.Env[Any, Any]):
    """Episodes of 100 steps, each of which sleeps for 2 ms."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.random(4, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait, and give a reward of 1 for action 1."""
        self.wait()
        self.time += 1
        return self.np_random.random(4, np.float32), float(action), self.time == 100, False, {}

    def wait(self) -> None:
        """Spend the time of a step."""
        time.sleep(STEP_SECONDS)


class Busy(Sleeping):
    """The same episodes, with the core busy instead of asleep."""

    def wait(self) -> None:
        """Spend the time of a step."""
        end = time.process_time() + STEP_SECONDS
        while time.process_time() < end:
            pass


def rate(kind: str, workers: int) -> float:
    """Steps per second of a run, between its first row of metrics and its last."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (
            f"--env engram.benchmarks.env_workers:{kind.capitalize()} --core gru --local --env-workers {workers}"
        )
        arguments += " --core-args hidden_size=32 --prediction-size 0"
        sizes = f"--total-steps 6000 --log-every 1000 --run-dir {folder}/run"
        subprocess.run(["rl-train", *arguments.split(), *sizes.split()], check=True, capture_output=True)
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    return (last["step"] - first["step"]) / (last["time"] - first["time"])


if __name__ == "__main__":
    kind, workers = (*sys.argv[1:], "sleeping", "2")[:2] if len(sys.argv) != 2 else (sys.argv[1], "2")
    rates = {count: [0.0] for count in (0, int(workers))}
    for _ in range(2):
        for count in rates:
            rates[count].append(rate(kind, count))
    best = {count: max(each) for count, each in rates.items()}
    print(json.dumps({"kind": kind, "steps_per_second": best, "ratio": best[int(workers)] / best[0]}))
