"""The cost of recording the recurrent state: for acting without a recording, and for a run with `--look-every`.

    python benchmarks/look_cost.py [--seconds 120]

Writes results/look-cost.json. Acting: CPU time of unrolls, in turn, of an actor whose core has been recorded and two
whose cores have not. The order in which the three are created changes their speed by about 1%, independent of the
recording. So each of 12 processes chooses the recorded one at random, the median ratio of a process is one sample, and
the interval is over processes. Training: runs in which an image is due at every update, and the fraction of their time
that images and statistics take.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from engram.actors.actor import Actor
from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.agents.inside import recorded
from engram.agents.process import prepare_process
from engram.base.files import replace_file
from engram.launch.api.training import make_agents, make_learners, make_panel, make_trainer
from engram.launch.config.plain import to_dict
from engram.launch.config.run_config import find_device
from engram.launch.config.run_flags import parse_run
from engram.launch.insight.page import Watcher
from engram.launch.metrics.member import Member
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.directory import RunDirectory
from engram.launch.train.acting import make_pool

RESULT = Path(__file__).parent / "results" / "look-cost.json"
PAIRINGS = (("t-maze", "gru"), ("boxworld", "rmc"))
PROCESSES = 12
STEPS = 2
"""Of an unroll."""


def actor(env: str, core: str) -> Actor:
    """Make an actor of 32 environments."""
    agent = AgentConfig(core=core)
    return ActorFactory(env=env, agent=agent, num_envs=32, unroll_length=STEPS, seed=0).make_actor(0)


def seconds(one: Actor) -> float:
    """Measure the CPU time of an unroll."""
    started = time.process_time()
    one.unroll()
    return time.process_time() - started


def one_process(env: str, core: str, limit: float, seed: int) -> tuple[float, float]:
    """Median ratios of a process: the recorded actor, and an unrecorded one, to another unrecorded actor."""
    draw = np.random.default_rng(seed)
    made = [actor(env, core) for _ in range(3)]
    never, looked_at, control = (made[k] for k in draw.permutation(3))
    with recorded(looked_at.agent.core):
        looked_at.unroll()
    for each in made:
        each.unroll()
    samples, until = list[tuple[float, float]](), time.monotonic() + limit
    while time.monotonic() < until:
        taken = {int(k): seconds((never, looked_at, control)[k]) for k in draw.permutation(3)}
        samples.append((taken[1] / taken[0], taken[2] / taken[0]))
    recorded_before, other = np.median(np.array(samples), axis=0)
    return float(recorded_before), float(other)


def acting(env: str, core: str, limit: float) -> dict[str, Any]:
    """Cost of an earlier recording, and that of a control: means over processes with 95% intervals."""
    jobs = [(env, core, limit / PROCESSES, seed) for seed in range(PROCESSES)]
    with get_context("spawn").Pool(1, prepare_process, (1,), maxtasksperchild=1) as pool:
        ratios = np.array(pool.starmap(one_process, jobs, chunksize=1))
    draw, results = np.random.default_rng(0), dict[str, Any]()
    for name, each in zip(("recorded_before", "control"), ratios.T, strict=True):
        low, high = np.quantile(draw.choice(each, (10_000, PROCESSES)).mean(axis=1), (0.025, 0.975))
        results[name] = {"mean_ratio": round(float(each.mean()), 4), "low": round(low, 4), "high": round(high, 4)}
        results[name]["of_processes"] = np.round(each, 4).tolist()
    return results


class TimedWatcher(Watcher):
    """Watcher that counts its images and measures the seconds spent on them."""

    images = 0
    spent = 0.0

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        started = time.monotonic()
        super().look(member, before, at_step)
        self.spent += time.monotonic() - started

    def _draw(self, member: Member, at_step: Callable[[], None]) -> None:
        super()._draw(member, at_step)
        self.images += 1


def training(env: str, core: str, limit: float) -> dict[str, Any]:
    """Measure a run in this process whose images are due at every update."""
    with TemporaryDirectory() as folder, ExitStack() as files:
        arguments = ["--env", env, "--core", core, "--look-every", "1", "--local", "--run-dir", f"{folder}/run"]
        config = parse_run(arguments)
        agents, fields = make_agents(config, config.factory(), find_device("cpu"))
        learners = make_learners(config, agents)
        pool = make_pool(config, config.factory(), print)
        directory = files.enter_context(RunDirectory.create(config.run_dir, to_dict(config), name="cost"))
        panel = make_panel(config, directory.path, 0)
        trainer = make_trainer(config, learners, fields, pool, directory, panel, None, files)
        watcher = TimedWatcher(config)
        trainer._looks = [watcher.look]  # pyright: ignore[reportPrivateUsage]
        for member in trainer.members:
            pool.publish(member.weights(pool))
        started = time.monotonic()
        while time.monotonic() - started < limit:
            trainer.update()
        whole = time.monotonic() - started
        return {
            "seconds": round(whole, 1),
            "images": watcher.images,
            "seconds_of_looking": round(watcher.spent, 3),
            "share": round(watcher.spent / whole, 5),
        }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each of the four measurements")
    options = parser.parse_args()
    prepare_process(1)
    results: dict[str, Any] = {**provenance(), "acting": {}, "training": {}}
    for env, core in PAIRINGS:
        results["acting"][f"{env} {core}"] = acting(env, core, options.seconds)
        results["training"][f"{env} {core}"] = training(env, core, options.seconds)
        print(json.dumps({kind: results[kind][f"{env} {core}"] for kind in ("acting", "training")}), flush=True)
    replace_file(RESULT, json.dumps(results, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
