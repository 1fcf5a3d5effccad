"""`rl-train`: train an agent with memory, from a command line to a run directory."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..actors.factory import ActorFactory
from ..actors.pool import ActorFailureError, ActorPool, LocalPool
from ..agents.process import prepare_process
from ..learners import checkpoints
from ..learners.learner import Learner
from .command_line import UsageError, parse_run, run_command, value_of, without
from .config import RunConfig, differences, from_dict, to_dict
from .metrics import MetricsWriter
from .panel import Panel
from .run_directory import RunDirectory, RunDirectoryError
from .trainer import StopFlag, Trainer

ACTOR_NICENESS = 5
"""Actors step back when the learner wants their core: it is the learner that a run waits for."""

MAY_CHANGE = {
    "total_steps",
    "num_actors",
    "device",
    "local",
    "run_dir",
    "time_limit",
    "log_every",
    "checkpoint_every",
    "keep_checkpoints",
    "max_actor_failures",
    "actor_timeout",
    "actor_cpus",
    "learner.helper_share",
}
"""Settings that may be given with --resume: they do not change what is learnt (but for --num-actors with --sync)."""


def main(arguments: Sequence[str]) -> int:
    """Train as the words say; returns the exit code."""
    sys.path.append(os.getcwd())  # so that module:Class finds a user's own files
    resume = value_of("--resume", arguments)
    try:
        if resume is None:
            config = parse_run(arguments)
            return train(config, None)
        directory = RunDirectory.open(Path(resume))
        return train(resumed_config(directory, without(arguments, ("--resume",))), directory)
    except (RunDirectoryError, checkpoints.CheckpointError) as problem:
        raise UsageError(str(problem)) from problem


def train(config: RunConfig, directory: RunDirectory | None) -> int:
    """Run a configuration to its end, in a new run directory or, to resume, in one that exists."""
    prepare_process(1)
    factory, device = config.factory(), find_device(config.device)
    learner, fields = make_learner(config, factory, device)
    saved = newest_checkpoint(directory) if directory else None
    factory = replace(factory, resumed_at=saved["learner"]["steps"] if saved else 0)
    name = f"{config.env}-{config.agent.core}".replace("/", "-").replace(":", "-")
    directory = directory or RunDirectory.create(config.run_dir, to_dict(config), name=name)
    with directory, Panel(config.total_steps, directory.path, name) as panel:
        panel.message(describe(config, learner, device))
        pool = make_pool(config, factory, panel.message)
        add_helper(config, factory, learner)
        try:
            # Signals are taken over only now: starting Ray installs handlers of its own.
            with StopFlag() as stop, MetricsWriter(directory.path, factory.resumed_at, panel.message) as writer:
                writer.hparams(to_dict(config))
                trainer = Trainer(config, learner, pool, directory, writer, fields, panel.update, panel.message)
                if saved:
                    trainer.load_state(saved)
                reason = trainer.run(stop)
        except ActorFailureError as problem:
            print(f"rl-train: {problem}", file=sys.stderr)
            print(f"rl-train: continue with: rl-train --resume {directory.path}", file=sys.stderr)
            return 1
        finally:
            pool.close()
            stop_ray(config)
    print(farewell(config, directory.path, reason, learner.steps))
    return 0


def make_learner(config: RunConfig, factory: ActorFactory, device: torch.device) -> tuple[Learner, tuple[str, ...]]:
    """The learner with a freshly initialised agent, and the names of the world's episode fields."""
    try:
        batch = factory.make_batch(num_envs=1)
        torch.manual_seed(config.seed)
        agent = factory.make_agent(batch).to(device)
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem
    fields = tuple(batch.episode_fields)
    batch.close()
    return Learner(agent, config.learner, config.total_steps), fields


def make_pool(config: RunConfig, factory: ActorFactory, report: Callable[[str], None]) -> ActorPool:
    """The actors: in this process with --local, else in Ray processes."""
    if config.local:
        return LocalPool(factory.make_actor, config.num_actors, config.max_actor_failures, report)
    from ..actors.ray_pool import RayPool  # Ray takes a second to import; --local does without
    from .ray_session import start_ray

    start_ray(config.num_actors)
    return RayPool(
        factory.make_actor,
        config.num_actors,
        config.max_actor_failures,
        report,
        cpus_per_actor=config.actor_cpus,
        niceness=ACTOR_NICENESS,
        timeout=config.actor_timeout,
    )


def add_helper(config: RunConfig, factory: ActorFactory, learner: Learner) -> None:
    """Give the learner its second process, where the configuration asks for one and Ray and a CPU learner are there.

    Without it the learner does that share itself, with the same result.
    """
    if config.learner.helper_share and not config.local and learner.device.type == "cpu":
        from .ray_helper import RayHelper

        learner.helper = RayHelper(learner.agent, factory, config.learner, niceness=0)


def newest_checkpoint(directory: RunDirectory) -> dict[str, Any]:
    """The state in a run's newest intact checkpoint."""
    path = checkpoints.latest(directory.checkpoints)
    if path is None:
        raise UsageError(
            f"{directory.path} has no intact checkpoint to resume from; start it anew in another --run-dir"
        )
    return checkpoints.load(path)


def stop_ray(config: RunConfig) -> None:
    """Stop the private Ray, if this run started one."""
    if not config.local:
        import ray

        ray.shutdown()


def resumed_config(directory: RunDirectory, words: Sequence[str]) -> RunConfig:
    """A run's own configuration with the few settings that may be given on resuming it."""
    try:
        old = from_dict(RunConfig, directory.config())
    except (ValueError, TypeError) as problem:
        raise UsageError(f"{directory.path / 'config.toml'}: {problem}") from problem
    new = parse_run(words, base=old)
    for name, before, after in differences(old, new):
        if name not in MAY_CHANGE:
            raise UsageError(
                f"{directory.path} was trained with {name} = {before!r}, not {after!r}; "
                f"--resume can change: {', '.join(sorted(MAY_CHANGE))}"
            )
    directory.rewrite_config(to_dict(new))
    return new


def find_device(name: str) -> torch.device:
    """The learner's device; UsageError if it does not exist."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    return device


def describe(config: RunConfig, learner: Learner, device: torch.device) -> str:
    """The run in two lines, for the top of the screen."""
    parameters = sum(p.numel() for p in learner.agent.parameters())
    where = "in this process" if config.local else f"{config.num_actors} actor process(es), 1 torch thread each"
    return (
        f"{config.env} with {config.agent.core}: {parameters:,} parameters, {config.learner.algorithm} on {device} "
        + (f" (a helper takes {config.learner.helper_share:.0%} of each update)" if config.learner.helper_share else "")
        + "\n"
        f"{config.num_actors} x {config.envs_per_actor} environments {where}; "
        f"updates of {config.unroll_length} steps x {config.columns} environments, seed {config.seed}"
    )


def farewell(config: RunConfig, path: Path, reason: str, steps: int) -> str:
    """What happened and what to run next."""
    lines = [
        f"{'finished' if reason == 'done' else f'stopped ({reason})'} after {steps:,} steps; all of it is in {path}"
    ]
    if reason != "done":
        lines.append(f"  continue        rl-train --resume {path}")
    lines.append(f"  evaluate        rl-eval {path} --episodes 1000 --gif {path}/episode.gif")
    lines.append(f"  curves          tensorboard --logdir {path.parent}")
    if config.env_args:
        lines.append(f"  paper's task    rl-train --env {config.env} --core {config.agent.core}")
    return "\n".join(lines)


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-train`."""
    run_command("rl-train", main, arguments)
