"""Milliseconds of one learner update on a device, as JSON, for BoxWorld with unrolls of 40 steps.

    python benchmarks/update_time.py --device cuda                       every core
    python benchmarks/update_time.py --device cuda --cuda-graph          recorded and eager, in turns
    python benchmarks/update_time.py --cores rmc lstm --envs 32 256 1024

The median of several synchronized updates with the batch on the device. A batch of more than an actor's 32 environments
consists of copies of one unroll.
"""

import argparse
import json
import statistics
import time
from typing import Any

from engram.actors.factory import ActorFactory
from engram.actors.unroll import Unroll, join, some_environments
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores import core_names
from engram.agents.process import prepare_process
from engram.launch.config.run_config import find_device
from engram.launch.metrics.provenance import provenance
from engram.learners.config import LearnerConfig
from engram.learners.device import WARM_UP
from engram.learners.learner import Learner

WIDTH = 32
TORSOS = {
    "grid": TorsoConfig(),
    "embedding": TorsoConfig(embedding_size=256),
    "atari-resnet": TorsoConfig(torso="atari-resnet"),
}


def of_width(unroll: Unroll, envs: int) -> Unroll:
    """Return the unroll, repeated to `envs` environments."""
    return some_environments(join([unroll] * -(-envs // WIDTH)), slice(0, envs))


def milliseconds(learners: dict[str, Learner], batch: Unroll, repeats: int) -> dict[str, float]:
    """Median time of each learner's updates, in turns after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(WARM_UP + 2 + repeats):
        for name, learner in learners.items():
            started = time.perf_counter()
            learner.step(batch)  # reads the metrics, and so waits for the device
            if number >= WARM_UP + 2:
                seconds[name].append(time.perf_counter() - started)
    return {name: round(1000 * statistics.median(each), 3) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cores", nargs="*", default=[])
    parser.add_argument("--torso", default="grid", choices=sorted(TORSOS))
    parser.add_argument("--envs", type=int, nargs="+", default=[WIDTH])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--cuda-graph", action="store_true")
    options = parser.parse_args()
    device = find_device(options.device)
    prepare_process(1)
    results: dict[str, Any] = {}
    for core in options.cores or core_names():
        agent = AgentConfig(core=core, torso=TORSOS[options.torso])
        factory = ActorFactory(env="boxworld", agent=agent, num_envs=WIDTH, unroll_length=40, seed=1)
        actor = factory.make_actor(0)
        unroll = actor.unroll()
        for envs in options.envs:
            kinds = (False, True) if options.cuda_graph else (False,)
            learners = {
                "recorded" if kind else "eager": Learner(
                    factory.make_agent(actor.batch).to(device), LearnerConfig(cuda_graph=kind), 10**9
                )
                for kind in kinds
            }
            results[f"{core} {envs}"] = milliseconds(learners, of_width(unroll, envs), options.repeats)
    print(json.dumps(provenance() | {"device": options.device, "torso": options.torso, "milliseconds": results}))


if __name__ == "__main__":
    main()
