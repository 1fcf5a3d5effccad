"""Time to a score: BoxWorld, easy setting, until 90% of the last 500 episodes are solved.

    pip install --no-deps stable-baselines3 sb3-contrib && pip install pandas
    python benchmarks/time_to_score/run.py WORK                every run that WORK has no result of
    python benchmarks/time_to_score/run.py WORK --seeds 1      one seed only

All have the same levels (`--preset easy`), the same convolutions and one LSTM of 256, and one core: time is
CPU time, which depends little on other load. Ours is `rl-train --env boxworld --core lstm --preset
easy --local`. A run of theirs that is not at the goal after --limit minutes of it ends there.

sb3-contrib's RecurrentPPO with 1 and with 4 epochs has 32 environments, rollouts of 40 steps and an entropy cost of
.005; recurrent PPO in one file as CleanRL has it (see recurrent_ppo_single_file.py) its own settings with 8 and with 64
environments. The learning rate of each of theirs is tried at three values with the first seed; the best one runs the
other seeds. Every run is a file in WORK; a stopped benchmark can be resumed. All results go to
benchmarks/results/time-to-score.json and .png.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GOAL, EPISODES, LAST = 0.9, 500, 5_000_000
ENV_ARGS = {"path_lengths": 1, "num_distractors": 0, "grid_size": 6}
RATES = (2.5e-4, 5e-4, 1e-3)


class Peer(NamedTuple):
    """A training method; `values` are its settings other than the learning rate."""

    label: str
    kind: str
    values: dict[str, int]


PEERS = (
    Peer("engram", "engram", {}),
    Peer("RecurrentPPO, 1 epoch", "sb3", {"n_epochs": 1}),
    Peer("RecurrentPPO, 4 epochs", "sb3", {"n_epochs": 4}),
    Peer("CleanRL's form, 8 environments", "single-file", {"num_envs": 8}),
    Peer("CleanRL's form, 64 environments", "single-file", {"num_envs": 64}),
)


class Score:
    """The mean score (solved, or a return) of the last 500 episodes, and a curve of it."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        """Seconds of CPU time."""
        self.window: deque[float] = deque(maxlen=EPISODES)
        self.curve: list[tuple[int, float, float]] = []
        """(steps, seconds, mean score), every 10,000 steps."""
        self.reached: tuple[int, float] | None = None
        self.steps = 0

    def ended(self, step: int, score: float) -> None:
        """Note the end of an episode."""
        self.window.append(score)
        self.steps = step
        rate = sum(self.window) / len(self.window)
        if step - (self.curve[-1][0] if self.curve else 0) >= 10_000:
            self.curve.append((step, round(time.process_time(), 1), round(rate, 4)))
        if self.reached is None and len(self.window) == EPISODES and rate >= GOAL:
            self.reached = (step, round(time.process_time(), 1))

    def over(self) -> bool:
        """Whether the goal, the last step or the last second is reached."""
        return self.reached is not None or self.steps >= LAST or time.process_time() >= self.limit


def run_engram(seed: int, folder: Path) -> dict[str, Any]:
    """`rl-train` as a user starts it; the start is included in the seconds."""
    command = [str(Path(sys.executable).with_name("rl-train")), "--env", "boxworld", "--core", "lstm"]
    command += ["--preset", "easy", "--local", "--seed", str(seed), "--run-dir", str(folder), "--log-every", "5000"]
    clock: list[tuple[float, float]] = [(time.time(), 0.0)]
    with folder.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            used = watched.cpu_times()
            clock.append((time.time(), used.user + used.system))
            curve, reached = curve_of(folder / "metrics.jsonl", clock)
            if reached:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
                break
            time.sleep(0.5)
    curve, reached = curve_of(folder / "metrics.jsonl", clock)
    return {"curve": curve, "reached": reached}


def curve_of(
    file: Path, clock: list[tuple[float, float]], measure: str = "episode/solved"
) -> tuple[list[Any], tuple[int, float] | None]:
    """The mean of `measure` over the newest rows that have 500 episodes; a row's episodes: steps by mean length."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    curve: list[Any] = []
    window: deque[tuple[float, float]] = deque()
    before = 0
    for row in rows:
        metrics = row["metrics"]
        if measure in metrics:
            window.append(((row["step"] - before) / (metrics["episode/length"] + 1), metrics[measure]))
        before = row["step"]
        while len(window) > 1 and sum(count for count, _ in list(window)[1:]) >= EPISODES:
            window.popleft()
        total = sum(count for count, _ in window)
        if window:
            rate = sum(count * solved for count, solved in window) / total
            seconds = round(float(np.interp(row["time"], *zip(*clock, strict=True))), 1)
            curve.append((row["step"], seconds, round(rate, 4)))
            if total >= EPISODES and rate >= GOAL:
                return curve, (row["step"], seconds)
    return curve, None


def run_sb3(lr: float, seed: int, limit: float, n_epochs: int) -> dict[str, Any]:
    """sb3-contrib's RecurrentPPO."""
    sys.path.append(str(ROOT / "benchmarks"))
    from peers import lstm_policy, vector_env
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback

    score = Score(limit)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            for over, reward, info in zip(*(self.locals[key] for key in ("dones", "rewards", "infos")), strict=True):
                if over:
                    score.ended(self.num_timesteps, bool(reward > 0 and not info["TimeLimit.truncated"]))
            return not score.over()

    RecurrentPPO(
        "MlpLstmPolicy",
        vector_env(32, seed, **ENV_ARGS),
        n_steps=40,
        batch_size=1280 // n_epochs,
        n_epochs=n_epochs,
        learning_rate=lr,
        ent_coef=0.005,
        seed=seed,
        device="cpu",
        policy_kwargs=lstm_policy(),
    ).learn(LAST, callback=Watch())
    return {"curve": score.curve, "reached": score.reached}


def run_single_file(lr: float, seed: int, limit: float, num_envs: int) -> dict[str, Any]:
    """Recurrent PPO in one file."""
    from recurrent_ppo_single_file import train

    score = Score(limit)
    train(ENV_ARGS, num_envs, lr, LAST, seed, score.ended, score.over)
    return {"curve": score.curve, "reached": score.reached}


def result_file(work: Path, peer: Peer, lr: float | None, seed: int) -> Path:
    """Path of a run's result."""
    parts = [peer.kind, *(f"{key}{value}" for key, value in peer.values.items()), *([f"{lr:g}"] if lr else []), seed]
    return work / ("-".join(map(str, parts)) + ".json")


def measure(work: Path, peer: Peer, lr: float | None, seed: int, limit: float) -> None:
    """One run and its result."""
    if peer.kind == "engram":
        outcome = run_engram(seed, work / f"run-{seed}-{int(time.time())}")
    elif peer.kind == "sb3":
        outcome = run_sb3(lr or 0.0, seed, limit, **peer.values)
    else:
        outcome = run_single_file(lr or 0.0, seed, limit, **peer.values)
    head = {"label": peer.label, "lr": lr, "seed": seed, "limit": None if peer.kind == "engram" else limit}
    result_file(work, peer, lr, seed).write_text(json.dumps(head | outcome))
    print(f"{peer.label}, lr {lr}, seed {seed}: {outcome['reached'] or 'goal not reached'}", flush=True)


def best_rate(work: Path, peer: Peer, seed: int) -> float | None:
    """The learning rate that was at the goal first, else the one with the highest last rate; None for ours."""
    if peer.kind == "engram":
        return None
    results = [json.loads(result_file(work, peer, lr, seed).read_text()) for lr in RATES]
    return min(results, key=lambda found: (found["reached"] or [10**12])[0] - found["curve"][-1][2])["lr"]


def collect(work: Path) -> None:
    """All results in WORK as one file and one plot."""
    from engram.launch.metrics.provenance import provenance

    results = [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]
    head = provenance("stable-baselines3", "sb3-contrib") | {"goal": GOAL, "episodes": EPISODES, "results": results}
    (RESULTS / "time-to-score.json").write_text(json.dumps(head, indent=1) + "\n")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, column, name in ((axes[0], 0, "environment steps"), (axes[1], 1, "minutes of a core")):
        for number, peer in enumerate(PEERS):
            for result in (each for each in results if each["label"] == peer.label and each["curve"]):
                points = [point[column] / (60 if column else 1) for point in result["curve"]]
                axis.plot(points, [point[2] for point in result["curve"]], color=f"C{number}", lw=1, label=peer.label)
        axis.axhline(GOAL, color="gray", lw=0.8, ls=":")
        axis.set_xscale("log")
        axis.set_xlabel(name)
    axes[0].set_ylabel("solved, last 500 episodes")
    handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    axes[0].legend(handles.values(), handles.keys(), fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "time-to-score.png", dpi=90)


def main() -> None:
    """Run the missing runs, each in a separate process, and collect the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--limit", type=float, default=30.0, help="minutes of processor time for a run of a peer")
    parser.add_argument("--one", nargs=3, metavar=("PEER", "LR", "SEED"), help="exactly one run, in this process")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.one:
        number, lr, seed = options.one
        measure(work, PEERS[int(number)], float(lr) or None, int(seed), 60 * options.limit)
        return
    first = options.seeds[0]
    for seed in options.seeds:
        for number, peer in enumerate(PEERS):
            rates = RATES if seed == first and peer.kind != "engram" else (best_rate(work, peer, first),)
            for lr in rates:
                if not result_file(work, peer, lr, seed).exists():
                    arguments = [sys.executable, __file__, str(work), "--one", str(number), str(lr or 0.0), str(seed)]
                    arguments += ["--limit", str(options.limit)]
                    subprocess.run(arguments, check=True)
            collect(work)


if __name__ == "__main__":
    main()
