"""Steps per second of `--local` and of `--act-on`, measured in turns in one process.

    python benchmarks/act_on.py                            boxworld with lstm, on the CPU
    python benchmarks/act_on.py --env t-maze --core concrete --act-on cuda --device cuda

Both are complete runs except for Ray: acting, batches, updates, publishing, rows of metrics. The last line of the
output is the result as JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from engram.actors import thread_pool
from engram.agents.process import prepare_process
from engram.agents.threads import use_threads
from engram.launch.api.training import make_agents, make_learners, make_panel, make_trainer
from engram.launch.config.plain import to_dict
from engram.launch.config.run_config import RunConfig, find_device
from engram.launch.config.run_flags import parse_run
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.directory import RunDirectory
from engram.launch.train.acting import make_pool
from engram.launch.train.trainer import Trainer

WARM_UP = 3


def open_run(arguments: list[str], folder: Path, files: ExitStack) -> Trainer:
    """Open a run in this process, ready for its first update."""
    config: RunConfig = parse_run([*arguments, "--run-dir", str(folder)])
    factory = config.factory()
    agents, fields = make_agents(config, factory, find_device(config.device))
    pool = make_pool(config, factory, print)
    files.callback(pool.close)
    directory = files.enter_context(RunDirectory.create(config.run_dir, to_dict(config), name="speed"))
    panel = make_panel(config, directory.path, 0)
    trainer = make_trainer(config, make_learners(config, agents), fields, pool, directory, panel, None, files)
    for member in trainer.members:
        pool.publish(member.weights(pool))
    return trainer


def steps_per_second(trainer: Trainer, updates: int) -> float:
    """Steps per second over `updates` updates, including their batches."""
    first, started = trainer.steps, time.perf_counter()
    target = sum(member.updates for member in trainer.members) + updates
    while sum(member.updates for member in trainer.members) < target:
        trainer.update()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (trainer.steps - first) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="boxworld")
    parser.add_argument("--core", default="lstm")
    parser.add_argument("--act-on", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=4, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shared-stream", action="store_true", help="the thread acts on the learner's stream")
    options, others = parser.parse_known_args()
    prepare_process(1)
    if options.shared_stream:
        thread_pool.stream_module = lambda _: None
    arguments = ["--env", options.env, "--core", options.core, "--device", options.device, *others]
    rates: dict[str, list[float]] = {"local": [], "act_on": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        runs = {
            "local": open_run([*arguments, "--local"], Path(folder) / "local", files),
            "act_on": open_run([*arguments, "--act-on", options.act_on], Path(folder) / "act-on", files),
        }
        use_threads(runs["local"].config.num_learner_threads)
        for run in runs.values():
            steps_per_second(run, WARM_UP)
        for _ in range(options.turns):
            for name, run in runs.items():
                rates[name].append(steps_per_second(run, options.updates))
    pairs = zip(rates["act_on"], rates["local"], strict=True)
    result: dict[str, Any] = {name: round(statistics.median(each), 1) for name, each in rates.items()}
    result |= {"ratio_of_pairs": round(statistics.median(a / b for a, b in pairs), 3)}
    result |= {"turns": {name: [round(rate, 1) for rate in each] for name, each in rates.items()}}
    settings = {
        "env": options.env,
        "core": options.core,
        "act_on_device": options.act_on,
        "device": options.device,
        "shared_stream": options.shared_stream,
        "more": others,
    }
    print(json.dumps(provenance() | settings | result))


if __name__ == "__main__":
    main()
