"""A trained agent from its run directory, on levels that training has never seen."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fsspec.core import url_to_fs

from ... import zoo
from ...actors.actor import Actor
from ...actors.factory import ActorFactory
from ...learners import checkpoints
from . import saved
from .command_line import UsageError
from .config import RunConfig, differences, from_dict
from .run_directory import CONFIG, RunDirectory, RunDirectoryError
from .trainees import Trainee, trainees_of
from .urls import is_url, redacted

_log = logging.getLogger(__name__)

EVALUATION = 0xE7A1
"""Key of the random streams of evaluations: whatever its seed, no training run has the same ones."""

EVALUATED_TOGETHER = 128
"""Environments of an evaluation; more do not make inference faster."""

MAY_CHANGE = {
    "total_steps",
    "num_actors",
    "num_learners",
    "env_workers",
    "learner_threads",
    "device",
    "local",
    "run_dir",
    "time_limit",
    "log_every",
    "log_seconds",
    "track",
    "eval_every",
    "eval_episodes",
    "look_every",
    "video_every",
    "checkpoint_every",
    "keep_checkpoints",
    "checkpoint_url",
    "max_actor_failures",
    "actor_timeout",
    "stall_timeout",
    "actor_cpus",
    "actor_gpus",
    "ray_address",
    "learner.compile",
}
"""Settings that may be given with --resume: they do not change what is learned (but for --num-actors with --sync)."""


class Trained(NamedTuple):
    """A run's configuration and one of its checkpoints."""

    config: RunConfig
    checkpoint: Path
    trainees: list[Trainee]
    """The members in the checkpoint."""
    best: saved.Best | None = None
    """The figures behind the checkpoint, if the best one was asked for."""


def open_run(path: str, checkpoint: str) -> Trained:
    """The run at `path` and the checkpoint that `--checkpoint` means, `zoo:NAME`, or the folder or URL of a card.

    Raises UsageError.
    """
    if path.startswith(zoo.PREFIX):
        return _open_zoo(path)
    if is_card(path):
        return _open_card(path)
    try:
        run = RunDirectory.open(path, lock=False)
        config = run_config(run)
        found, state = find_checkpoint(run, checkpoint)
    except (RunDirectoryError, checkpoints.CheckpointError) as problem:
        raise UsageError(str(problem)) from problem
    return Trained(config, found, trainees_of(state), state["best"] if checkpoint == "best" else None)


def is_card(path: str) -> bool:
    """Whether `path` is a URL, or a folder with a card, and no run directory."""
    return is_url(path) or (Path(path) / zoo.FACTS).is_file()


def _open_zoo(path: str) -> Trained:
    """An agent that comes with engram."""
    try:
        kept = zoo.load(path.removeprefix(zoo.PREFIX))
        return Trained(from_dict(RunConfig, kept.config), kept.folder, [Trainee(kept.weights, None)])
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem


def _open_card(place: str) -> Trained:
    """The agent in a folder or at a URL that `rl-eval --card` has written."""
    try:
        files, root = url_to_fs(place)
        kept = zoo.read(Path(Path(root).name), lambda name: files.cat_file(f"{root.rstrip('/')}/{name}"))
        return Trained(from_dict(RunConfig, kept.config), kept.folder, [Trainee(kept.weights, None)])
    except Exception as problem:  # every kind of store fails in its own way
        reason = str(problem).replace(place, redacted(place)).splitlines()
        text = f"{type(problem).__name__}: {reason[0] if reason else ''}"
        raise UsageError(f"{redacted(place)} holds no agent that can be read ({text})") from problem


def imitated(path: str) -> str:
    """The player that a run imitates, or whose agent it began with, itself or through others; "" for none."""
    try:
        config = open_run(path, "latest").config
    except UsageError:
        return ""  # of a run that is gone nothing is known
    return config.learner.imitate or (config.start_from and imitated(config.start_from)) or ""


def run_config(run: RunDirectory) -> RunConfig:
    """The configuration of a run. Raises RunDirectoryError if this version of engram does not know a setting in it."""
    found = run.config()
    if "task" in found and "env" not in found:
        raise RunDirectoryError(f"{run.path} is a run of rl-probe; expected: one of rl-train")
    try:
        return from_dict(RunConfig, found)
    except (ValueError, TypeError, AttributeError) as problem:
        raise RunDirectoryError(f"{run.path / CONFIG}: {problem}") from problem


def fixed_differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """Differences between two configurations (setting, old, new) that are not allowed within one run."""
    # Settings that an algorithm did not have yet when a run was written down have their defaults.
    old, new = (replace(each, learner=each.learner.resolved()) for each in (old, new))
    found = (each for each in differences(old, new) if each[0] not in MAY_CHANGE)
    return [(name, before, after) for name, before, after in found if _as_read(before) != _as_read(after)]


def _as_read(value: Any) -> Any:
    """A value as a configuration file gives it back: tuples are lists there."""
    if isinstance(value, dict):
        return {key: _as_read(each) for key, each in value.items()}
    return [_as_read(each) for each in value] if isinstance(value, list | tuple) else value


def find_checkpoint(run: RunDirectory, which: str) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that `--checkpoint` means, and the state in it; "latest" and "best" pass damaged ones over."""
    number = which.removeprefix("step-")
    if number.isdigit():
        path = checkpoints.path_of(run.checkpoints, int(number))
        if not path.is_dir():
            raise UsageError(f"{run.path} has no checkpoint of step {int(number)}; there are: {_checkpoints(run)}")
        return path, saved.read(path)
    if which not in ("latest", "best"):
        raise UsageError(f"checkpoint is {which!r}; allowed: latest, best, or a step: {_checkpoints(run)}")
    damaged: set[Path] = set()
    path = None
    for path, state in saved.readable(run.checkpoints):
        if which == "latest":
            return path, state
        best = checkpoints.path_of(run.checkpoints, state["best"].step) if state["best"] else None
        if best is None or best in damaged:
            continue  # one written before may name another
        try:
            return best, saved.read(best)
        except checkpoints.CheckpointError as problem:
            _log.warning("skipped the best checkpoint: %s", problem)
            damaged.add(best)
    if path is None:
        raise UsageError(f"{run.path} has no intact checkpoint; there are: {_checkpoints(run)}")
    if damaged:
        raise UsageError(f"{min(damaged)}, the best checkpoint, cannot be read; --checkpoint latest works")
    raise UsageError(f"{run.path} has no best checkpoint yet, too few episodes have ended; --checkpoint latest works")


def evaluation_seed(seed: int) -> int:
    """The seed of the environments and actions of evaluations with `--seed`."""
    return int(np.random.SeedSequence(seed, spawn_key=(EVALUATION,)).generate_state(1, np.uint64)[0])


def evaluation_factory(trained: RunConfig, env_args: dict[str, Any]) -> ActorFactory:
    """Environments of an evaluation: those of training with `evaluation_args` of the environment, then `env_args`.

    Raises UsageError if the environment cannot be made.
    """
    factory = trained.factory()
    changed = dict(getattr(_one_environment(factory), "evaluation_args", {}))
    return replace(factory, imitate="", env_args=trained.env_args | changed | env_args)


def levels_line(trained: RunConfig, factory: ActorFactory, seed: int) -> str:
    """Line about the levels of an evaluation: which of them occur in training, too. Raises UsageError."""
    played, known = (getattr(_one_environment(f), "level_set", set[bytes])() for f in (factory, trained.factory()))
    line = f"evaluation seed {seed}: random streams that training (seed {trained.seed}) never used"
    changed = {name: value for name, value in factory.env_args.items() if trained.env_args.get(name) != value}
    if changed:
        line += f"; {' '.join(f'{name}={value}' for name, value in changed.items())}"
    if not played:
        return line
    shared = len(played & known)
    return (
        f"{line}; {shared:,} of its {len(played):,} levels occur in training, too"
        if shared
        else (f"{line}; none of its {len(played):,} levels occurs in training")
    )


def evaluation_envs(factory: ActorFactory, episodes: int) -> int:
    """Environments of an evaluation of so many episodes: where each plays one level for ever, one for every level.

    Raises UsageError if the environment cannot be made.
    """
    batch = _one_environment(factory)
    return min(episodes, max(EVALUATED_TOGETHER, getattr(batch, "fixed_levels", 0)))


def _one_environment(factory: ActorFactory) -> Any:
    """A batch of one environment, closed already, for its attributes. Raises UsageError if it cannot be made."""
    try:
        batch = factory.make_batch(num_envs=1)
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem
    batch.close()
    return batch


def make_actor(
    factory: ActorFactory,
    weights: dict[str, Any],
    *,
    seed: int,
    greedy: bool,
    num_envs: int,
    unroll_length: int,
    first_index: int = 0,
    reset_options: dict[str, Any] | None = None,
) -> Actor:
    """An actor with these weights on levels of its own, for the caller to close.

    `reset_options` are the `options` of the first reset of a Gymnasium environment.

    Raises UsageError if the weights and the environment do not fit.
    """
    with ExitStack() as files:
        try:
            batch: Any = factory.make_batch(first_index, num_envs)
            files.callback(batch.close)
            if reset_options:
                batch.reset_options = dict(reset_options)
            agent = factory.make_agent(batch)
        except (ValueError, TypeError) as problem:
            raise UsageError(str(problem)) from problem
        try:
            agent.load_state_dict(weights)
        except RuntimeError as problem:
            raise UsageError(
                f"the trained network does not fit an environment with {factory.env_args}: {_first_line(problem)}"
            ) from problem
        agent.greedy = greedy
        actor = Actor(batch, agent, unroll_length=unroll_length, seed=evaluation_seed(seed), first_index=first_index)
        files.pop_all()
    return actor


def _checkpoints(run: RunDirectory) -> str:
    return ", ".join(sorted(path.name for path in run.checkpoints.glob("step-*"))) or "none"


def _first_line(problem: Exception) -> str:
    """The first thing that torch complains about: its first line is a title."""
    lines = str(problem).splitlines()
    return lines[1 if len(lines) > 1 else 0].strip()
