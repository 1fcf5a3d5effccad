"""Two POPGym tasks to a mean return of .9 over 500 episodes: engram beside memorax (JAX).

    python benchmarks/time_to_score/popgym.py WORK --peer-python PYTHON

PYTHON is an interpreter with memorax 1.0.1, gymnax 0.0.9, popjym (from its repository) and psutil. The two take turns,
one run at a time on one core, XLA with one thread. CPU time is the main figure, since it depends little on other load.
Both have an embedding of 128, one layer of the memory with 128 units, 64 environments, unrolls of 64 steps, PPO with 4
epochs of 8 minibatches, discount .99, lambda .97, clip .2 and entropy cost .02. memorax has separate networks for
policy and value, engram a shared one, and in addition predicts the next observation. Ours is `--preset easy`;
memorax's learning rate is the best of --rates with the first seed. With --example memorax runs once more, with the
settings of its own example for these tasks.

Start: CPU seconds before the first step (compilation, imports), by a line through the first and the last row of a run.
popjym's RepeatPrevious asks for the card of k steps ago, POPGym and engram for k - 1: k is set accordingly. Its
CountRecall has 2 actions where POPGym has 27, so it is not used. Every run is a file in WORK; a stopped benchmark can
be resumed. All results go to benchmarks/results/peers-popgym.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from run import RESULTS, Score, run_engram
from run import TASKS as SCORES

ENVS, STEPS, UNITS = 64, 64, 128
SCORE = SCORES["repeat-previous"]
TASKS = ("repeat-previous", "repeat-first")
CORES = ("gru", "lstm", "s5")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",  # XLA's thread pools
    "JAX_PLATFORMS": "cpu",
}


def memorax_agent(task: str, core: str, lr: float, example: bool) -> Any:
    """memorax's PPO on popjym's environment; with `example`, settings of its examples/ppo_popjym.py."""
    import flax.linen as nn
    import optax
    from memorax.algorithms import PPO, PPOConfig
    from memorax.networks import FFN, MLP, RNN, FeatureExtractor, Memoroid, Network, PreNorm, Residual, S5Cell, heads
    from memorax.networks import Stack as Layers
    from popjym.environments.popgym_repeat_first import RepeatFirst
    from popjym.environments.popgym_repeat_previous import RepeatPrevious

    env = RepeatPrevious(num_decks=1, k=3) if task == "repeat-previous" else RepeatFirst(num_decks=1)
    size = 256 if example else UNITS
    settings: dict[str, Any] = {"num_steps": STEPS, "gae_lambda": 0.97, "update_epochs": 4, "clip_coef": 0.2}
    settings |= {"ent_coef": 0.02}
    if example:
        settings = {"num_steps": 1024, "gae_lambda": 1.0, "update_epochs": 30, "clip_coef": 0.3}
        settings |= {"ent_coef": 0.0, "target_kl": 0.01}
    config = PPOConfig(
        name=core,
        num_envs=ENVS,
        num_eval_envs=1,
        gamma=0.99,
        num_minibatches=8,
        normalize_advantage=True,
        clip_vloss=True,
        vf_coef=0.5,
        **settings,
    )
    if core == "s5":
        s5 = Residual(module=PreNorm(module=Memoroid(cell=S5Cell(features=size, state_size=size // 2))))
        torso: Any = Layers(blocks=(s5, Residual(module=PreNorm(module=FFN(features=size, expansion_factor=1)))))
    else:
        torso = RNN(cell={"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}[core](features=size))
    features = FeatureExtractor(observation_extractor=MLP(features=size))
    small = nn.initializers.orthogonal(scale=0.01)
    actor = Network(features, torso, heads.Categorical(env.action_space().n, kernel_init=small))
    critic = Network(features, torso, heads.VNetwork())
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(lr))
    return PPO(config, env, env.default_params, actor, critic, optimizer, optimizer)


def run_memorax(task: str, core: str, lr: float, seed: int, limit: float, example: bool) -> dict[str, Any]:
    """memorax's PPO, one update a call, until its last 500 episodes have the score."""
    import jax

    started = time.time() - psutil.Process().create_time()
    began, score, rows, steps = time.time() - started, Score(SCORE, limit), list[Any](), 0
    agent = memorax_agent(task, core, lr, example)
    key, state = agent.init(jax.random.key(seed))
    batch = agent.cfg.batch_size
    returns = np.zeros(ENVS)
    while not score.over():
        key, state, transitions = agent.train(key, state, batch)
        shape = (agent.cfg.num_steps, ENVS)
        rewards, done = (np.asarray(each).reshape(shape) for each in (transitions.reward, transitions.done))
        for reward, over in zip(rewards, done, strict=True):
            returns += reward
            for i in np.flatnonzero(over):
                score.ended(steps + batch, {SCORE.measure: float(returns[i])})
            returns[over] = 0.0
        steps += batch
        if score.window:
            rows.append((steps, round(time.process_time(), 1), round(sum(score.window) / len(score.window), 4)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall = round(time.time() - began, 1)
    return {"curve": rows, "reached": score.reached, "wall_s": wall, "peak_mb": peak // 1024}


def name_of(peer: str, task: str, core: str, lr: float, seed: int) -> str:
    """Name of the file of a run."""
    return f"{peer}-{task}-{core}-{lr:g}-{seed}.json"


def measure(work: Path, peer: str, task: str, core: str, lr: float, seed: int, limit: float) -> None:
    """One run and its result."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if peer == "engram":
        size = [] if core == "s5" else ["--core-args", f"hidden_size={UNITS}"]
        flags = ["--core", core, *size, "--envs-per-actor", str(ENVS), *(["--lr", str(lr)] if lr else [])]
        folder = work / f"run-{task}-{core}-{seed}-{int(time.time())}"
        outcome = run_engram(SCORE._replace(env=f"popgym-{task}"), flags, seed, folder, limit)
    else:
        outcome = run_memorax(task, core, lr, seed, limit, peer == "memorax-example")
    (first, began, _), (last, ended, _) = outcome["curve"][0], outcome["curve"][-1]
    pace = (ended - began) / max(last - first, 1)
    start = max(began - pace * first, 0.0)
    figures = {"start_cpu_s": round(start, 1), "steps_per_cpu_s": round(1 / pace) if pace else None}
    if outcome["reached"]:
        steps, seconds = outcome["reached"]
        figures |= {"steps": steps, "cpu_s": seconds, "cpu_s_without_start": round(seconds - start, 1)}
        figures |= {"wall_s": outcome["wall_s"]}
    head = {"peer": peer, "task": task, "core": core, "lr": lr or None, "seed": seed, "limit_cpu_s": limit}
    best = max(score for _, _, score in outcome["curve"])
    result = head | {"reached": bool(outcome["reached"]), "best": best} | figures | {"peak_mb": outcome["peak_mb"]}
    thin = outcome["curve"][:: max(1, len(outcome["curve"]) // 40)]
    (work / name_of(peer, task, core, lr, seed)).write_text(json.dumps(result | {"curve": thin}))
    print(result, flush=True)


def best_rate(work: Path, task: str, core: str, seed: int) -> float:
    """memorax's learning rate that had the score first, else the highest score."""
    paths = work.glob(name_of("memorax", task, core, 0.0, seed).replace("-0-", "-*-"))
    results = [json.loads(path.read_text()) for path in paths]
    return min(results, key=lambda each: (each.get("steps", 10**12), -each["best"]))["lr"]


def collect(work: Path) -> None:
    """All results in WORK as one file."""
    from engram.launch.metrics.provenance import provenance

    results = [json.loads(path.read_text()) for path in sorted(work.glob("*-*.json"))]
    head = provenance() | {"goal": 0.9, "episodes": 500, "num_envs": ENVS, "unroll_length": STEPS, "results": results}
    (RESULTS / "peers-popgym.json").write_text(json.dumps(head, indent=1) + "\n")


def main() -> None:
    """Run the missing runs in turns, each in a process of its own, and collect the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--cores", nargs="+", default=CORES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-4, 1e-3, 2e-3], help="memorax's learning rates")
    parser.add_argument("--engram-rates", nargs="+", type=float, default=[0.0], help="engram's; 0: the preset's, 5e-4")
    parser.add_argument("--limit", type=float, default=4.0, help="minutes of CPU time for a run")
    parser.add_argument("--example", action="store_true", help="also memorax with the settings of its example")
    parser.add_argument(
        "--one", nargs=5, metavar=("PEER", "TASK", "CORE", "LR", "SEED"), help="one run, in this process"
    )
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.one:
        peer, task, core, lr, seed = options.one
        measure(work, peer, task, core, float(lr), int(seed), 60 * options.limit)
        return

    def run(peer: str, task: str, core: str, lr: float, seed: int) -> None:
        if not (work / name_of(peer, task, core, lr, seed)).exists():
            python = sys.executable if peer == "engram" else options.peer_python
            arguments = [python, __file__, str(work), "--limit", str(options.limit), "--one"]
            arguments += [peer, task, core, str(lr), str(seed)]
            subprocess.run(arguments, check=True, env=os.environ | ONE_THREAD)

    first = options.seeds[0]
    for seed in options.seeds:
        for task in options.tasks:
            for core in options.cores:
                for lr in options.engram_rates:
                    run("engram", task, core, lr, seed)
                for lr in options.rates if seed == first else (best_rate(work, task, core, first),):
                    run("memorax", task, core, lr, seed)
                collect(work)
    if options.example:
        run("memorax-example", options.tasks[0], "gru", 5e-5, first)
        collect(work)


if __name__ == "__main__":
    main()
