"""Time to a score beside other libraries: tasks that take minutes, one LSTM of 256 units everywhere, one core.

    python benchmarks/time_to_score/run.py WORK --peer-python PYTHON              every run that WORK has no result of
    python benchmarks/time_to_score/run.py WORK --tasks boxworld --peers engram cleanrl-64 --seeds 1

PYTHON is an interpreter that has engram, the libraries of libraries.py, which describes each, and psutil. Time is CPU
time with the start of the process, which other load changes by up to a half. engram is `rl-train --local` as a user
starts it; with a learning rate of null in the results, it has the default or the preset's. Every library has the same
environments, stepped in batches by the same code, and the same convolutions or embedding where it allows; all other
settings are its own. Each of --rates is tried with the first seed for --search-limit minutes of CPU time, or as long
as the best one before it took; the best one runs all seeds for --limit minutes, if it reaches the score with the first.

Peers take turns. Every run is a file in WORK; a stopped benchmark can be resumed. All results go to
benchmarks/results/time-to-score.json and .png.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LAST = 5_000_000
"""Environment steps of a learning rate schedule."""
RATES = (1e-3, 5e-4, 2.5e-4)


class Task(NamedTuple):
    """An environment and the score that ends a run."""

    env: str
    env_args: dict[str, Any]
    flags: tuple[str, ...]
    """Of `rl-train`."""
    measure: str
    """Name of the score in the metrics."""
    goal: float
    episodes: int
    """Number of training episodes whose mean is the score."""
    embedding: int
    """Units of the linear layer before the LSTM; 0: convolutions instead."""


EASY = ("--preset", "easy")
BOXWORLD = {"path_lengths": 1, "num_distractors": 0, "grid_size": 6}
CARTPOLE = "engram.examples.masked_cartpole:MaskedCartPole"
TASKS = {
    "boxworld": Task("boxworld", BOXWORLD, EASY, "episode/solved", 0.9, 500, 0),
    "cartpole": Task(CARTPOLE, {}, (), "episode/return", 450, 100, 128),
    "repeat-previous": Task("popgym-repeat-previous", {}, EASY, "episode/return", 0.9, 500, 128),
}


class Peer(NamedTuple):
    """A way to train; `values` are flags of `rl-train`, or settings of a library other than the learning rate."""

    label: str
    kind: str
    values: Any = ()


PEERS = {
    "engram": Peer("engram", "engram"),
    "torchrl": Peer("torchrl", "torchrl", {}),
    "sample-factory": Peer("sample-factory", "sample_factory", {}),
    "cleanrl-64": Peer("CleanRL's form, 64 environments", "cleanrl", {"num_envs": 64}),
    "cleanrl-8": Peer("CleanRL's form, 8 environments", "cleanrl", {"num_envs": 8}),
    "recurrent-ppo": Peer("RecurrentPPO, 4 epochs", "sb3", {"n_epochs": 4}),
    "recurrent-ppo-1": Peer("RecurrentPPO, 1 epoch", "sb3", {"n_epochs": 1}),
    "rllib": Peer("RLlib", "rllib", {}),
    "engram-float32": Peer("engram, float32", "engram", ("--precision", "float32")),
    "ppo": Peer("engram, PPO", "engram", ("--algorithm", "ppo")),
    "vtrace": Peer("engram, V-trace", "engram", ("--algorithm", "vtrace")),
    "replay": Peer("engram, V-trace and replay", "engram", ("--algorithm", "vtrace", "--replay-ratio", "1")),
}
COMPARED = tuple(PEERS)[:8]


class Score:
    """The mean score of the last episodes, and a curve of it."""

    def __init__(self, task: Task, limit: float) -> None:
        self.task, self.limit = task, limit
        """Seconds of CPU time."""
        self.window: deque[float] = deque(maxlen=task.episodes)
        self.curve: list[tuple[int, float, float]] = []
        """(steps, seconds, mean score), every 10,000 steps."""
        self.reached: tuple[int, float] | None = None
        self.steps = 0

    def ended(self, step: int, episode: dict[str, float]) -> None:
        """Note the end of an episode after `step` steps of all environments: its return, and whether it is solved."""
        self.window.append(episode[self.task.measure])
        self.steps = step
        mean = sum(self.window) / len(self.window)
        if step - (self.curve[-1][0] if self.curve else 0) >= 10_000:
            self.curve.append((step, round(time.process_time(), 1), round(mean, 4)))
        if self.reached is None and len(self.window) == self.task.episodes and mean >= self.task.goal:
            self.reached = (step, round(time.process_time(), 1))

    def over(self) -> bool:
        """Whether the goal, the last step or the last second is reached."""
        return self.reached is not None or self.steps >= LAST or time.process_time() >= self.limit


def run_engram(task: Task, flags: Sequence[str], seed: int, folder: Path, limit: float) -> dict[str, Any]:
    """`rl-train` as a user starts it; the start is included in the seconds."""
    command = [str(Path(sys.executable).with_name("rl-train")), "--env", task.env, "--core", "lstm", *task.flags]
    command += ["--local", "--seed", str(seed), "--run-dir", str(folder), "--log-every", "5000", *flags]
    clock: list[tuple[float, float]] = [(time.time(), 0.0)]
    with folder.with_suffix(".log").open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            used = process.cpu_times()
            clock.append((time.time(), used.user + used.system))
            if curve_of(folder / "metrics.jsonl", clock, task)[1] or clock[-1][1] > limit:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
                break
            time.sleep(0.5)
    curve, reached = curve_of(folder / "metrics.jsonl", clock, task)
    seconds, times = [each[1] for each in clock], [each[0] for each in clock]
    wall = float(np.interp(reached[1] if reached else seconds[-1], seconds, times)) - times[0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"curve": curve, "reached": reached, "wall_s": round(wall, 1), "peak_mb": peak // 1024}


def curve_of(file: Path, clock: list[tuple[float, float]], task: Task) -> tuple[list[Any], tuple[int, float] | None]:
    """The mean score over the newest rows that have the task's episodes; a row's episodes: steps by mean length."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    curve: list[Any] = []
    window: deque[tuple[float, float]] = deque()
    before = 0
    for row in rows:
        metrics = row["metrics"]
        if task.measure in metrics:
            window.append(((row["step"] - before) / (metrics["episode/length"] + 1), metrics[task.measure]))
        before = row["step"]
        while len(window) > 1 and sum(count for count, _ in list(window)[1:]) >= task.episodes:
            window.popleft()
        total = sum(count for count, _ in window)
        if window:
            rate = sum(count * solved for count, solved in window) / total
            seconds = round(float(np.interp(row["time"], *zip(*clock, strict=True))), 1)
            curve.append((row["step"], seconds, round(rate, 4)))
            if total >= task.episodes and rate >= task.goal:
                return curve, (row["step"], seconds)
    return curve, None


def run_library(task: Task, peer: Peer, lr: float, seed: int, limit: float) -> dict[str, Any]:
    """A library, until its episodes have the score."""
    sys.path.append(str(ROOT / "benchmarks"))
    import libraries
    import torch
    from peers import Envs

    torch.set_num_threads(1)
    score = Score(task, limit)
    envs = Envs(task.env, task.env_args, task.embedding, score.ended)
    getattr(libraries, peer.kind)(envs, score, lr, seed, **dict(peer.values))
    wall = time.time() - psutil.Process().create_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"curve": score.curve, "reached": score.reached, "wall_s": round(wall, 1), "peak_mb": peak // 1024}


def result_file(work: Path, task: str, peer: str, lr: float | None, seed: int) -> Path:
    """Path of a run's result."""
    return work / ("-".join([task, peer, *([f"{lr:g}"] if lr else []), str(seed)]) + ".json")


def measure(work: Path, task: str, peer: str, lr: float | None, seed: int, limit: float) -> None:
    """One run and its result."""
    if PEERS[peer].kind == "engram":
        folder = work / f"run-{task}-{peer}-{lr or ''}-{seed}-{int(time.time())}"
        flags = (*PEERS[peer].values, *(("--lr", str(lr)) if lr else ()))
        outcome = run_engram(TASKS[task], flags, seed, folder, limit)
    else:
        outcome = run_library(TASKS[task], PEERS[peer], lr or 0.0, seed, limit)
    best = max((score for _, _, score in outcome["curve"]), default=None)
    outcome["curve"] = outcome["curve"][:: len(outcome["curve"]) // 40 + 1]
    head = {"task": task, "peer": peer, "label": PEERS[peer].label, "lr": lr, "seed": seed, "limit": limit}
    result_file(work, task, peer, lr, seed).write_text(json.dumps(head | {"best": best} | outcome))
    print(f"{task}, {peer}, lr {lr}, seed {seed}: {outcome['reached'] or f'best {best}'}", flush=True)


def read(path: Path) -> dict[str, Any]:
    """A run's result; an empty one if it has not run."""
    return json.loads(path.read_text()) if path.exists() else {"limit": 0.0, "reached": None}


def cost(result: dict[str, Any]) -> float:
    """CPU seconds to the goal; if it was not reached, more than any of these, the more the lower the best score."""
    return result["reached"][1] if result["reached"] else 10**6 - (result["best"] or -(10**3))


def collect(work: Path) -> None:
    """All results in WORK as one file and one plot."""
    from engram.launch.metrics.provenance import provenance

    results = [read(path) for path in sorted(work.glob("*.json"))]
    lines = ",\n".join("  " + json.dumps(result) for result in results)
    head = json.dumps(provenance(), indent=1).removesuffix("\n}")
    (RESULTS / "time-to-score.json").write_text(f'{head},\n "results": [\n{lines}\n ]\n}}\n')
    tasks = [task for task in TASKS if any(result["task"] == task for result in results)]
    figure, axes = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 4), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for number, peer in enumerate(COMPARED):
            for result in (each for each in results if (each["task"], each["peer"]) == (task, peer)):
                points = [(seconds / 60, score) for _, seconds, score in result["curve"]]
                axis.plot(*zip(*points, strict=True), color=f"C{number}", lw=1, label=PEERS[peer].label)
        axis.axhline(TASKS[task].goal, color="gray", lw=0.8, ls=":")
        axis.set_xscale("log")
        axis.set_xlabel("minutes of CPU time")
        axis.set_title(task)
        axis.set_ylabel(f"{TASKS[task].measure}, last {TASKS[task].episodes} episodes")
        handles = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        axis.legend(handles.values(), handles.keys(), fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "time-to-score.png", dpi=90)


def main() -> None:
    """Run the missing runs in turns, each in a separate process, and collect the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=COMPARED)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates of the libraries")
    parser.add_argument("--search-limit", type=float, default=4.0, help="minutes of CPU time, one learning rate")
    parser.add_argument("--limit", type=float, default=9.0, help="minutes of CPU time for other runs")
    parser.add_argument("--one", nargs=4, metavar=("TASK", "PEER", "LR", "SEED"), help="one run, in this process")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.one:
        task, peer, lr, seed = options.one
        measure(work, task, peer, float(lr) or None, int(seed), 60 * options.limit)
        return

    def run(task: str, peer: str, lr: float | None, seed: int, limit: float) -> dict[str, Any]:
        result = read(path := result_file(work, task, peer, lr, seed))
        if not result["reached"] and result["limit"] < 60 * limit:
            python = sys.executable if PEERS[peer].kind == "engram" else options.peer_python
            arguments = [python, __file__, str(work), "--limit", str(limit), "--one", task, peer, str(lr or 0.0)]
            subprocess.run([*arguments, str(seed)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return read(path)

    first = options.seeds[0]
    for seed in options.seeds:
        for task in options.tasks:
            for peer in options.peers:
                lr = None
                if PEERS[peer].kind != "engram":
                    tried, limit = [], options.search_limit
                    for rate in options.rates:
                        tried.append(run(task, peer, rate, first, limit))
                        limit = min(limit, (tried[-1]["reached"] or (0, 60 * limit))[1] / 60)
                    lr = min(tried, key=cost)["lr"]
                if seed == first or run(task, peer, lr, first, options.limit)["reached"]:
                    run(task, peer, lr, seed, options.limit)
                    collect(work)


if __name__ == "__main__":
    main()
