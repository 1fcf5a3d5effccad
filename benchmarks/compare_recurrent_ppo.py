"""Training speed of sb3-contrib's RecurrentPPO and `rl-train --core lstm` on engram/BoxWorld-v0, in one run.

    pip install sb3-contrib stable-baselines3
    python benchmarks/compare_recurrent_ppo.py                    a table and a JSON file in benchmarks/results/
    python benchmarks/compare_recurrent_ppo.py --num-actors 2     further arguments go to rl-train

Both train the same network (2x2 convolutions of 12 and 24 kernels with position planes, one LSTM of 256 for policy and
value) with Adam, on 1,280 steps per update, each step used once, states reset exactly at the ends of episodes.
RecurrentPPO gets the faster interface to the environments, the faster number of threads and the fastest number of
environments, chosen by a short trial of each; then the two alternate.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from peers import lstm_policy, vector_env
from rich.console import Console
from rich.table import Table

from engram.base.processes import num_cores
from engram.launch.bench.command import TrainingSpeed, training_speed
from engram.launch.metrics.provenance import provenance

RESULTS = Path(__file__).parent / "results"
STEPS_PER_UPDATE, ROLLOUT = 1280, 40
"""Steps per update, and of each environment between two updates or groups of them, as in rl-train's default."""


class Setting(NamedTuple):
    """A way to run RecurrentPPO."""

    num_envs: int
    threads: int
    batched: bool
    """Through engram's batched engine, or through DummyVecEnv and single environments."""


def recurrent_ppo_speed(setting: Setting, seconds: float, warm_up: float, seed: int) -> float:
    """Environment steps per second of whole cycles of acting and learning after `warm_up` seconds."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        """Callback that records the start of each cycle after the warm-up, and ends the run when time is up."""

        def __init__(self) -> None:
            super().__init__()
            self.started = 0.0
            self.cycles: list[tuple[float, int]] = []

        def _on_rollout_start(self) -> None:
            now = time.perf_counter()
            self.started = self.started or now
            if now >= self.started + warm_up:
                self.cycles.append((now, self.num_timesteps))

        def _on_step(self) -> bool:
            return len(self.cycles) < 3 or self.cycles[-1][0] < self.started + warm_up + seconds

    torch.set_num_threads(setting.threads)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        vector_env(setting.num_envs, seed, batched=setting.batched),
        n_steps=ROLLOUT,
        batch_size=STEPS_PER_UPDATE,
        n_epochs=1,
        learning_rate=2e-4,
        ent_coef=0.005,
        seed=seed,
        device="cpu",
        policy_kwargs=lstm_policy(),
    )
    clock = Clock()
    model.learn(10**12, callback=clock)
    (begin, first), (end, last) = clock.cycles[0], clock.cycles[-1]
    return (last - first) / (end - begin)


def in_own_process(setting: Setting, seconds: float, warm_up: float, seed: int) -> float:
    """Run `recurrent_ppo_speed` in a new process, like that of `rl-train`."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(recurrent_ppo_speed, setting, seconds, warm_up, seed).result()


def fastest_setting(seconds: float, seed: int, console: Console) -> tuple[Setting, list[dict[str, Any]]]:
    """Find the fastest way to run RecurrentPPO here, and the speed of each way in a short trial."""
    settings = [Setting(n, k, True) for n, k in product((32, 64, 128), sorted({1, num_cores()}))]
    settings.append(Setting(64, 1, False))
    trials: list[dict[str, Any]] = []
    for setting in settings:
        rate = in_own_process(setting, seconds, 2.0, seed)
        trials.append(setting._asdict() | {"steps_per_second": round(rate, 1)})
        console.print(f"trial of RecurrentPPO: {setting} {rate:,.0f} steps/s", highlight=False)
    best = max(trials, key=lambda trial: trial["steps_per_second"])
    return Setting(best["num_envs"], best["threads"], best["batched"]), trials


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds that count, per round and framework")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before those")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--trial-seconds", type=float, default=8.0, help="for each way to run RecurrentPPO")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / f"compare_recurrent_ppo-{date.today()}.json")
    options, arguments = parser.parse_known_args()
    console = Console()
    arguments = ["--env", "boxworld", "--core", "lstm", "--seed", str(options.seed), *arguments]
    setting, trials = fastest_setting(options.trial_seconds, options.seed, console)
    theirs: list[float] = []
    ours: list[TrainingSpeed] = []
    for i in range(options.rounds):
        console.print(f"round {i + 1} of {options.rounds}")
        theirs.append(in_own_process(setting, options.seconds, options.warm_up, options.seed))
        ours.append(training_speed(arguments, options.seconds, options.warm_up))
    our_mean, their_mean = np.mean([speed.steps_per_second for speed in ours]), np.mean(theirs)
    table = Table("", "steps/s", "rounds", title="training on engram/BoxWorld-v0, LSTM 256", title_justify="left")
    table.add_row("RecurrentPPO", f"{their_mean:,.0f}", " ".join(f"{rate:,.0f}" for rate in theirs))
    table.add_row("rl-train", f"{our_mean:,.0f}", " ".join(f"{speed.steps_per_second:,.0f}" for speed in ours))
    table.add_row("ratio", f"{our_mean / their_mean:.2f}")
    console.print(table)
    result = provenance("sb3-contrib", "stable-baselines3") | {
        "seed": options.seed,
        "command": ["rl-train", *arguments],
        "recurrent_ppo": setting._asdict(),
        "trials": trials,
        "recurrent_ppo_steps_per_second": [round(rate, 1) for rate in theirs],
        "engram_steps_per_second": [round(speed.steps_per_second, 1) for speed in ours],
        "ratio": round(float(our_mean / their_mean), 3),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {options.json}", highlight=False)


if __name__ == "__main__":
    main()
