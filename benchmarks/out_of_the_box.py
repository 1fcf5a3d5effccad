"""Environments without a preset: `rl-train` with default settings, sb3's PPO and sb3-contrib's RecurrentPPO.

    pip install --no-deps stable-baselines3 sb3-contrib && pip install pandas
    python benchmarks/out_of_the_box.py WORK                  all environments, learners and seeds without a result
    python benchmarks/out_of_the_box.py WORK --environments cartpole acrobot --learners engram ppo --seeds 1 2
Ours is `rl-train --env ENVIRONMENT --core gru --seed N` and nothing else that changes what is learned. Theirs have the
settings of rl-baselines3-zoo where it has some for the environment (hyperparams/ppo.yml and ppo_lstm.yml), else the
library's defaults. A run's score is the mean return of the episodes that ended within 10,000 steps. A run ends when its
score reaches the goal or its steps are done; a run of theirs also ends after --minutes of CPU time. Every
result is a file in WORK; a stopped benchmark can be resumed. All results are collected into
benchmarks/results/out-of-the-box.json and .png.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from engram.launch.metrics.provenance import provenance

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
WINDOW = 10_000
"""Steps between two scores."""
LEARNERS = ("engram", "ppo", "recurrent-ppo")


class Environment(NamedTuple):
    """An environment and its goal."""

    env: str
    goal: float
    """Mean return."""
    steps: int
    """Steps by which the goal is expected."""
    last: int
    """When a run that has not reached the goal ends."""
    ppo: dict[str, Any]
    """The zoo's settings for PPO; empty where it has none."""
    recurrent: dict[str, Any]
    """The zoo's settings for RecurrentPPO."""


_CARTPOLE = {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
_CARTPOLE |= {"learning_rate": "linear 0.001", "clip_range": "linear 0.2"}
_ACROBOT = {"normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4}
_DOORKEY = {"normalize": True, "n_envs": 8, "n_steps": 128, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.99}
_DOORKEY |= {"n_epochs": 10, "learning_rate": 2.5e-4, "clip_range": 0.2}
AUTOENCODE_GOAL = round(-0.5 + 5 * (0.75 / 52 / 95) ** 0.5, 3)
"""Five standard errors above chance: 52 guesses among four, each +1/52 or -1/52, in the 95 episodes of a window."""

ENVIRONMENTS = {
    "cartpole": Environment("CartPole-v1", 475, 150_000, 300_000, _CARTPOLE, _CARTPOLE),
    "masked-cartpole": Environment(
        "engram.examples.masked_cartpole:MaskedCartPole", 475, 500_000, 1_000_000, _CARTPOLE, _CARTPOLE
    ),
    "acrobot": Environment("Acrobot-v1", -100, 300_000, 600_000, _ACROBOT, _ACROBOT),
    "repeat-previous": Environment("popgym-RepeatPreviousEasy-v0", 0.95, 1_000_000, 1_000_000, {}, {}),
    "autoencode": Environment("popgym-AutoencodeEasy-v0", AUTOENCODE_GOAL, 1_000_000, 1_000_000, {}, {}),
    "memory-s7": Environment("MiniGrid-MemoryS7-v0", 0.9, 3_000_000, 3_000_000, _DOORKEY, {}),
    "doorkey": Environment("MiniGrid-DoorKey-5x5-v0", 0.9, 500_000, 1_000_000, _DOORKEY, {}),
    "pendulum": Environment("popgym-PositionOnlyPendulumEasy-v0", 0.8, 1_000_000, 1_000_000, {}, {}),
}


def engram(environment: Environment, seed: int, folder: Path, local: bool) -> list[tuple[int, float]]:
    """Train with default settings; return the curve (steps, score), which ends at the goal or after all steps."""
    command = [str(Path(sys.executable).with_name("rl-train")), "--env", environment.env, "--core", "gru"]
    command += ["--seed", str(seed), "--run-dir", str(folder), "--log-every", str(WINDOW)]
    command += ["--local"] if local else []
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.5)
            if finished(environment, _scores(folder / "metrics.jsonl")):
                process.send_signal(signal.SIGTERM)
                process.wait(120)
    curve = _scores(folder / "metrics.jsonl")
    if process.returncode and not finished(environment, curve):
        sys.exit(f"{folder}: rl-train ended with {process.returncode} before its time; see {folder}.log")
    return curve


def _scores(file: Path) -> list[tuple[int, float]]:
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [(row["step"], row["metrics"]["episode/return"]) for row in rows if "episode/return" in row["metrics"]]


def finished(environment: Environment, curve: list[tuple[int, float]]) -> bool:
    """Whether the score has reached the goal, or time is up."""
    return bool(curve) and (curve[-1][1] >= environment.goal or curve[-1][0] >= environment.last)


def stable_baselines(environment: Environment, seed: int, recurrent: bool, minutes: float) -> list[tuple[int, float]]:
    """Train sb3's PPO or sb3-contrib's RecurrentPPO with the zoo's settings for at most `minutes`; return the curve."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = dict(environment.recurrent if recurrent else environment.ppo)
    envs = make_vec_env(lambda: theirs(environment.env), n_envs=settings.pop("n_envs", 8), seed=seed)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    for name in ("learning_rate", "clip_range"):
        if isinstance(text := settings.get(name), str):
            first = float(text.removeprefix("linear "))
            settings[name] = lambda left, first=first: first * left
    curve: list[tuple[int, float]] = []
    ended: list[float] = []

    class Scores(BaseCallback):
        """Mean returns of episodes by window."""

        def _on_step(self) -> bool:
            ended.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            if self.num_timesteps // WINDOW > (curve[-1][0] // WINDOW if curve else 0) and ended:
                curve.append((self.num_timesteps, float(np.mean(ended))))
                ended.clear()
            return not finished(environment, curve) and time.process_time() < 60 * minutes

    kind, policy = (RecurrentPPO, "MlpLstmPolicy") if recurrent else (PPO, "MlpPolicy")
    kind(policy, envs, seed=seed, device="cpu", **settings).learn(environment.last, callback=Scores())
    return curve


def theirs(env: str) -> Any:
    """Make the same environment for sb3, which supports neither text nor tuples."""
    import gymnasium
    from gymnasium.wrappers import FlattenObservation

    if ":" in env:
        from engram.examples.masked_cartpole import MaskedCartPole

        return MaskedCartPole()
    if env.startswith("MiniGrid"):
        import minigrid
        from minigrid.wrappers import ImgObsWrapper

        assert minigrid
        return FlattenObservation(ImgObsWrapper(gymnasium.make(env)))
    if env.startswith("popgym"):
        import popgym

        assert popgym
        return FlattenObservation(gymnasium.make(env))
    return gymnasium.make(env)


def measure(name: str, learner: str, seed: int, work: Path, local: bool, minutes: float) -> None:
    """Measure one run and write its result file."""
    environment, started = ENVIRONMENTS[name], time.monotonic()
    if learner == "engram":
        curve = engram(environment, seed, work / f"run-{name}-{seed}-{os.getpid()}", local)
    else:
        curve = stable_baselines(environment, seed, learner == "recurrent-ppo", minutes)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    reached = next((step for step, score in curve if score >= environment.goal), None)
    result = {
        "environment": name,
        "learner": learner,
        "local": local,
        "seed": seed,
        "goal": environment.goal,
        "steps_to_goal": reached,
        "limit": None if learner == "engram" or minutes == float("inf") else minutes,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "core_minutes": round(sum(each.ru_utime + each.ru_stime for each in used) / 60, 2),
        "load": round(os.getloadavg()[1], 1),
        "curve": [(step, round(score, 4)) for step, score in curve],
    }
    path = work / f"{name}-{learner}-{seed}.json"
    path.with_suffix(".part").write_text(json.dumps(result))
    path.with_suffix(".part").rename(path)
    print(f"{name} {learner} seed {seed}: {f'goal at {reached:,}' if reached else 'goal not reached'}", flush=True)


def collect(work: Path, into: Path) -> None:
    """Collect all results in WORK in one file and one plot."""
    results = [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]
    head = provenance("stable-baselines3", "sb3-contrib", "minigrid", "popgym")
    note = "load: how many processes wanted the machine's cores; minutes are comparable where it was 1, core_minutes, "
    note += "which are CPU time, nearly always"
    settings = {name: environment._asdict() for name, environment in ENVIRONMENTS.items()}
    text = json.dumps(head | {"note": note, "environments": settings, "results": results}, indent=1)
    into.with_suffix(".json").write_text(text + "\n")
    draw(results, into.with_suffix(".png"))


def draw(results: list[dict[str, Any]], into: Path) -> None:
    """Plot the curves of all results, one plot for each environment."""
    names = [name for name in ENVIRONMENTS if any(result["environment"] == name for result in results)]
    if not names:
        return
    figure, axes = plt.subplots(2, (len(names) + 1) // 2, figsize=(3.6 * ((len(names) + 1) // 2), 6), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        for result in (each for each in results if each["environment"] == name and each["curve"]):
            steps, scores = zip(*result["curve"], strict=True)
            axis.plot(steps, scores, color=f"C{LEARNERS.index(result['learner'])}", lw=1, label=result["learner"])
        axis.axhline(ENVIRONMENTS[name].goal, color="gray", lw=0.8, ls=":")
        axis.set_title(name)
        axis.locator_params(axis="x", nbins=4)
        axis.set_xlabel("environment steps")
        handles = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        axis.legend(handles.values(), handles.keys(), fontsize=7, loc="lower right")
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(into, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run the missing runs, each in a separate process, and collect the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--environments", nargs="+", choices=tuple(ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--local", action="store_true", help="rl-train --local: without Ray, the same numbers")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="most CPU time of a run of theirs")
    parser.add_argument("--one", action="store_true", help="exactly one run, in this process")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        sys.path.append(str(ROOT))
        measure(
            options.environments[0], options.learners[0], options.seeds[0], options.work, options.local, options.minutes
        )
        return
    for seed in options.seeds:
        for name in options.environments:
            for learner in options.learners:
                if not (options.work / f"{name}-{learner}-{seed}.json").exists():
                    arguments = [
                        "--environments",
                        name,
                        "--learners",
                        learner,
                        "--seeds",
                        str(seed),
                        "--minutes",
                        str(options.minutes),
                        "--one",
                    ]
                    arguments += ["--local"] if options.local else []
                    subprocess.run([sys.executable, __file__, str(options.work), *arguments], check=False)
                collect(options.work, RESULTS / "out-of-the-box")


if __name__ == "__main__":
    main()
