"""Going on with a run: its configuration, what of it may be changed, and the newest checkpoint that fits."""

import logging
from collections.abc import Sequence
from typing import Any

from ...learners import checkpoints
from .command_line import UsageError
from .config import RunConfig, differences, from_dict, to_dict
from .member import upgraded
from .run_directory import RunDirectory
from .run_flags import parse_run

MAY_CHANGE = {
    "total_steps",
    "num_actors",
    "device",
    "local",
    "run_dir",
    "time_limit",
    "log_every",
    "eval_every",
    "eval_episodes",
    "checkpoint_every",
    "keep_checkpoints",
    "checkpoint_url",
    "max_actor_failures",
    "actor_timeout",
    "actor_cpus",
    "ray_address",
    "learner.compile",
}
"""Settings that may be given with --resume: they do not change what is learnt (but for --num-actors with --sync)."""

_log = logging.getLogger(__name__)


def resumed_config(directory: RunDirectory, words: Sequence[str]) -> RunConfig:
    """A run's own configuration with the few settings that may be given on resuming it."""
    try:
        old = from_dict(RunConfig, directory.config())
    except (ValueError, TypeError) as problem:
        raise UsageError(f"{directory.path / 'config.toml'}: {problem}") from problem
    new = parse_run(words, base=old)
    for name, before, after in fixed_differences(old, new):
        raise UsageError(
            f"{directory.path} was trained with {name} = {before!r}, not {after!r}; "
            f"--resume can change: {', '.join(sorted(MAY_CHANGE))}"
        )
    directory.rewrite_config(to_dict(new))
    return new


def fixed_differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """What differs between two configurations (setting, old, new) and must not within one run."""
    return [each for each in differences(old, new) if each[0] not in MAY_CHANGE]


def newest_state(directory: RunDirectory, config: RunConfig) -> dict[str, Any] | None:
    """The state in the newest checkpoint that is intact and this run's own; None if the run has not written any.

    Those that are passed over are named in warnings. Raises UsageError if none is left of those that there were.
    """
    for path in checkpoints.intact(directory.checkpoints):
        try:
            state = checkpoints.load(path)
        except checkpoints.CheckpointError as problem:
            _log.warning("skipped a checkpoint: %s", problem)
            continue
        if why := _foreign(state, config):
            _log.warning("skipped a foreign checkpoint: %s %s", path, why)
            continue
        return upgraded(state)
    if checkpoints.any_in(directory.checkpoints):
        raise UsageError(
            f"{directory.path} has no intact checkpoint to resume from; start it anew in another --run-dir"
        )
    return None


def drop_code(state: dict[str, Any]) -> bool:
    """Take the actors out of a state whose environments are pickled, which is code: whether there were any."""
    saved = [actor for actors in state.get("actors", ()) for actor in actors.values()]
    pickled = any("pickled" in actor["batch"] for actor in saved)
    if pickled:
        del state["actors"]
    return pickled


def _foreign(state: dict[str, Any], config: RunConfig) -> str:
    """Why a state is not one of this run; empty if it is. Old checkpoints do not say what they were made with."""
    if "config" not in state:
        return ""
    try:
        made_with = from_dict(RunConfig, state["config"])
    except (ValueError, TypeError) as problem:
        return f"was made by another version: {problem}"
    found = fixed_differences(made_with, config)
    return ", ".join(f"was made with {name} = {theirs!r}, this run has {ours!r}" for name, theirs, ours in found[:3])
